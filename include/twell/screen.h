// The screen of a gate: an int8 copy that proves of most neurons that they do not fire for a token,
// with half the bytes of a bf16 weight and twice its rate of multiplication. What it cannot rule
// out is computed from the weight itself, so that results are those of the weight.
//
// Inputs share a direction, and a few large channels with it. So x is split into s · a along the
// screen's axis a, best the mean input, and the rest r:
//   w·x = s (w·a) + w·r.
// w is held as ŵ = scale · q with q in int8; r as r̂ with a scale for each block of inputs
// (kCodeBlock): a large channel costs the precision of its block alone. What
// both leave out is bounded by the Cauchy-Schwarz inequality:
//   w·r ≤ ŵ·r̂ + ‖ŵ‖ ‖r − r̂‖ + ‖w − ŵ‖ ‖r‖.
// Where the bound of w·x is at most the activation's threshold, so is w·x. Norms are rounded up by
// more than their own rounding. A row or token that is not finite is never ruled out. The axis
// decides how many neurons are ruled out, and changes no result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "twell/packed.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// The panels of codes (twell/packed.h), then four arrays with an entry for each neuron, padded to
// whole panels, and the axis, padded as inputs are.
constexpr std::size_t screen_bytes(std::int64_t rows, std::int64_t cols) {
  const std::int64_t floats = 4 * packed_panels(rows) * kPanel + code_depth(cols);
  return static_cast<std::size_t>(packed_panels(rows) * code_panel_bytes(cols) + floats * 4);
}

// Makes the screen of w, bf16 or f32, in `screen`: screen_bytes(w.rows, w.cols) bytes at a
// multiple of 4, best of 64. axis: w.cols numbers, the direction of a; null or zero: none.
// `context`: as pack_weight() takes it.
void make_screen(ConstMatrixView w, const float* axis, void* screen,
                 const Context* context = nullptr);

// A screen of W [rows, cols] in memory of somebody else; without data: none. A screen belongs to
// the weight it was made of: after a change to that it is wrong, and nothing notices.
struct ScreenView {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// A screen that owns its memory. A value; copies share it.
class Screen {
 public:
  // As make_screen() makes it.
  Screen(ConstMatrixView w, const float* axis, const Context* context = nullptr);

  // Lives as long as this or a copy of it.
  const ScreenView& view() const { return view_; }

 private:
  PreparedMemory memory_;
  ScreenView view_;
};

}  // namespace twell
#pragma GCC visibility pop
