// The NaN that a dense layer makes of neurons that do not fire, and that are skipped here: their h
// is 0 · u, which is NaN where u is not finite, and their share of y is 0 · Wd likewise.
//
// u is not finite where a row of x or of Wu is not. What overflows f32 in a dot product of finite
// numbers is not looked for.
#pragma once

#include "kernels/kernel.h"
#include "twell/train.h"

namespace twell {

// Whether a row of x that fires so many of the neurons of a gated layer has NaN for all of its y.
inline bool skips_nan(const Kernels& kernels, ConstMatrixView x, std::int64_t row,
                      std::int64_t fired, std::int64_t hidden) {
  return fired < hidden && !kernels.all_finite(x.row_bytes(row), x.cols);
}

void fill_nan(const MatrixView& y, std::int64_t row);

// All of it, for weights that nobody has looked at before: where they and x are not finite, y gets
// the NaN of what is not in the pattern. Returns whether an h is NaN that is not there.
bool spread_nan(Context& context, ConstMatrixView x, const FfnWeights& weights,
                const FfnPatternView& pattern, MatrixView y);

}  // namespace twell
