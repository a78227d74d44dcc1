// pack_weight and unpack_weight on CPU tensors.
#pragma once

#include <cstdint>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// weight [H, D] → [ceil(H/16), ceil(D/32)*16, 16, 2] of bf16 or [ceil(H/16), D, 16] of f32.
Tensor pack_weight(const Tensor& weight);

// The exact inverse: [rows, cols].
Tensor unpack_weight(const Tensor& packed, std::int64_t rows, std::int64_t cols);

}  // namespace twell::torch_ops
