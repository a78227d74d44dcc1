// The NaN that a dense layer makes of neurons that do not fire, and that are skipped here: their h
// is 0 · u, which is NaN where u is not finite, and their share of y is 0 · Wd likewise.
//
// u is not finite where a row of x or of Wu is not, or its bias; but relu makes 0 of −∞. What
// overflows f32 in a dot product of finite numbers is not looked for.
#pragma once

#include "ops/weight.h"
#include "twell/train.h"

namespace twell {

// Whether a row of x that is not finite, of a gated layer, has NaN for all of its y: by a neuron
// that is not among the `fired`, which ascend.
bool skips_nan(const FfnForm& form, const Weight& up, const void* x, const ActiveNeurons& fired);

void fill_nan(const MatrixView& y, std::int64_t row);

// All of it, for weights that nobody has looked at before: where they and x are not finite, y gets
// the NaN of what is not in the pattern. Returns whether an h is NaN that is not there.
bool spread_nan(Context& context, ConstMatrixView x, const UpDown& weights, const FfnForm& form,
                const FfnPatternView& pattern, MatrixView y);

}  // namespace twell
