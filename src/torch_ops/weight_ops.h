// Packing, unpacking and screening of weights; also in cuda/torch/.
#pragma once

#include <cstdint>
#include <optional>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// weight [H, D] → [ceil(H/16), ceil(D/32)*16, 16, 2] of bf16 or [ceil(H/16), D, 16] of f32.
Tensor pack_weight(const Tensor& weight);

// The exact inverse: [rows, cols].
Tensor unpack_weight(const Tensor& packed, std::int64_t rows, std::int64_t cols);

// weight [H, D] → the screen of a gate, uint8, for the device where it is; axis [D], f32: the
// direction of the screen's axis.
Tensor screen_weight(const Tensor& weight, const std::optional<Tensor>& axis);

// TierTuning::screen_limit of the tier in use.
double screen_limit();

}  // namespace twell::torch_ops
