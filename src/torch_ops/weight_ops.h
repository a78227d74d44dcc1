// Packing, unpacking and screening of weights; also in cuda/torch/.
#pragma once

#include <cstdint>
#include <optional>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// weight [H, D] → [H, n, 1], one tensor that says what it is (packed_shape); n is D where D is a
// multiple of 32 (of any, in f32) and H of 16.
Tensor pack_weight(const Tensor& weight);

// The exact inverse.
Tensor unpack_weight(const Tensor& packed);

// weight [H, D] → the screen of a gate, uint8, for the device where it is; axis [D], f32: the
// direction of the screen's axis.
Tensor screen_weight(const Tensor& weight, const std::optional<Tensor>& axis);

// TierTuning::screen_limit of the tier in use.
double screen_limit();

}  // namespace twell::torch_ops
