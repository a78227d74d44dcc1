// The feed-forward layer in fp64 and the error measure that every benchmark reports.
#pragma once

#include <ATen/core/Tensor.h>

#include "decoder/feed_forward.h"
#include "synth/synthetic.h"

namespace twell::lm {

// y [rows, D] in fp64 from the layer's weights and x [rows, D], nothing rounded in between.
at::Tensor reference_ffn(const SyntheticLayer& layer, const ActivationChoice& activation,
                         const at::Tensor& x);

// Largest |y - reference| of any element, each relative to the largest |reference| in its row;
// where that is 0, absolute. NaN where one side has one and the other has not.
double max_rel_err(const at::Tensor& y, const at::Tensor& reference);

// The same errors, root of their mean square: a few outliers do not decide it.
double rms_rel_err(const at::Tensor& y, const at::Tensor& reference);

}  // namespace twell::lm
