// The screen of a gate: an int8 copy that proves of most neurons that they do not fire for a token,
// with half the bytes of a bf16 weight and twice its rate of multiplication. What it cannot rule
// out is computed from the weight itself, so that results are those of the weight.
//
// Inputs share a direction, and a few large channels with it. So x is split into s · a along the
// screen's axis a, best the mean input, and the rest r:
//   w·x = s (w·a) + w·r.
// w is held as ŵ = scale · q with q in int8; r as r̂ with a scale for each block of inputs. What
// both leave out is bounded by the Cauchy-Schwarz inequality:
//   w·r ≤ ŵ·r̂ + ‖ŵ‖ ‖r − r̂‖ + ‖w − ŵ‖ ‖r‖.
// Where the bound of w·x is at most the activation's threshold, so is w·x. Norms are rounded up by
// more than their own rounding. A row or token that is not finite is never ruled out. The axis
// decides how many neurons are ruled out, and changes no result. A screen belongs to the weight it
// was made of: after a change to that one it is wrong, and nothing notices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "twell/device.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

namespace twell {

// Inputs of r that share a scale: a large channel costs the precision of its block alone.
constexpr std::int64_t kScreenBlock = 256;
constexpr std::int64_t screen_blocks(std::int64_t cols) {
  return (cols + kScreenBlock - 1) / kScreenBlock;
}
// Inputs after padding.
constexpr std::int64_t screen_depth(std::int64_t cols) { return (cols + 63) / 64 * 64; }

// A panel of 16 neurons is, block by block, −Σ q over the block of each neuron (16 int32), then
// steps of 16 neurons × 4 inputs.
constexpr std::int64_t kScreenHead = 4;  // inputs whose room the sums take
constexpr std::int64_t screen_panel_bytes(std::int64_t cols) {
  return kPanel * (screen_depth(cols) + kScreenHead * screen_blocks(cols));
}
// The panels, then four arrays with an entry for each neuron, padded to whole panels, and the axis,
// padded as inputs are.
constexpr std::size_t screen_bytes(std::int64_t rows, std::int64_t cols) {
  const std::int64_t floats = 4 * packed_panels(rows) * kPanel + screen_depth(cols);
  return static_cast<std::size_t>(packed_panels(rows) * screen_panel_bytes(cols) + floats * 4);
}

struct ScreenView {
  const void* data = nullptr;  // screen_bytes(rows, cols), 64-byte aligned
  std::int64_t rows = 0;       // H
  std::int64_t cols = 0;       // D

  const std::int8_t* panel(std::int64_t p) const {
    return static_cast<const std::int8_t*>(data) + p * screen_panel_bytes(cols);
  }
  const float* scales() const { return floats(0); }
  const float* norms() const { return floats(1); }   // ‖ŵ‖
  const float* errors() const { return floats(2); }  // ‖w − ŵ‖
  const float* along() const { return floats(3); }   // w·a
  const float* axis() const { return floats(4); }    // a

 private:
  const float* floats(std::int64_t array) const {
    return reinterpret_cast<const float*>(panel(packed_panels(rows))) +
           array * packed_panels(rows) * kPanel;
  }
};

// Share of the pre-activations left up to which a screen is faster than the packed gate, measured
// with D = 2048: 8 % with AVX-512, where vpdpbusd multiplies twice as many inputs as vdpbf16ps; 25
// % with AVX2, which has no instruction for bf16. 0: never. Nothing was measured with AMX, whose
// tiles multiply bf16 faster than vpdpbusd multiplies int8.
double screen_limit(CpuTier tier);

// `screen` has screen_bytes(w.rows, w.cols) bytes. w is bf16 or f32. axis: w.cols numbers, the
// direction of a; null or zero: none.
void make_screen(ConstMatrixView w, const float* axis, void* screen);

}  // namespace twell
