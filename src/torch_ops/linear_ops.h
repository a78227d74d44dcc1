// Plain linear layers on CPU tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// y [..., N] = x [..., D] Wᵀ + bias [N]; W comes from pack_weight of an [N, D] matrix.
Tensor linear(const Tensor& x, const Tensor& weight_packed, const std::optional<Tensor>& bias);

// x [..., D], rounded as twell::round_inputs rounds it.
Tensor round_inputs(const Tensor& x);

// y [..., N] = x [..., D] Wᵀ for a plain weight [N, D], for a few rows.
// y is of x's dtype, or the sums in float32.
Tensor linear_as_stored(const Tensor& x, const Tensor& weight, bool float_sums);

}  // namespace twell::torch_ops
