// A plain linear layer on a packed weight, on CPU tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// y [..., rows] = x [..., D] Wᵀ + bias [rows]; W comes from pack_weight of a [rows, D] matrix.
Tensor linear(const Tensor& x, const Tensor& weight_packed, std::int64_t rows,
              const std::optional<Tensor>& bias);

}  // namespace twell::torch_ops
