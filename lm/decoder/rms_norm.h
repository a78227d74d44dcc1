// y = x / √(mean(x²) + ε) ⊙ weight, over the last dimension. Computed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace twell::lm {

// x [..., D], weight [D], both bf16 or fp32 -> [..., D] of x's dtype. Differentiable once. One pass
// over each row on a CPU, PyTorch's operation elsewhere.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace twell::lm
