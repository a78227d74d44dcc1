// A norm of the decoder, over the last dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/block_spec.h"
#include "decoder/weights.h"

namespace twell::lm {

struct Norm {
  io::NormSpec spec = {};  // none: x as it is
  Parameter weight = {};   // [D]
  Parameter bias = {};     // [D]

  // x [..., D] -> [..., D] of x's dtype, rounded once from fp32. Differentiable once.
  at::Tensor operator()(const at::Tensor& x) const;
};

}  // namespace twell::lm
