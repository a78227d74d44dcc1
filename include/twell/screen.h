// The screen of a gate: an int8 copy that proves that most neurons do not fire for a token, with
// half the bytes of a bf16 weight and at twice its rate of multiplication. Neurons that it cannot
// rule out are computed from the weight itself, so results are those of the weight.
//
// Inputs share a direction, and a few large channels with it. So x is split into s · a along the
// screen's axis a, best the mean input, and the rest r:
//   w·x = s (w·a) + w·r.
// w is held as ŵ = scale · q with q in int8, and r as r̂ with a scale for each block of inputs
// (kCodeBlock), so that a large channel costs only the precision of its block. The Cauchy-Schwarz
// inequality bounds what both leave out:
//   w·r ≤ ŵ·r̂ + ‖ŵ‖ ‖r − r̂‖ + ‖w − ŵ‖ ‖r‖.
// If the bound of w·x is at most the activation's threshold, w·x is too. Norms are rounded up by
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

// Writes the screen of w (bf16 or f32) to `screen`: screen_bytes(w.rows, w.cols) bytes at a
// multiple of 4, best of 64. axis: w.cols numbers, the direction of a; null or zero: none.
// `context`: as for pack_weight().
void make_screen(ConstMatrixView w, const float* axis, void* screen,
                 const Context* context = nullptr);

// A screen of W [rows, cols] in memory that the caller owns; without data: none. A screen belongs
// to the weight that it was made of. If that changes, the screen is wrong, and nothing notices.
struct ScreenView {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// A screen that owns its memory. It is a value, and copies share its memory.
class Screen {
 public:
  // Makes it as make_screen() does.
  Screen(ConstMatrixView w, const float* axis, const Context* context = nullptr);

  // The view is valid as long as this object or a copy of it.
  const ScreenView& view() const { return view_; }

 private:
  PreparedMemory memory_;
  ScreenView view_;
};

}  // namespace twell
#pragma GCC visibility pop
