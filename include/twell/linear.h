// A plain linear layer on a packed weight: the gate's GEMM without the activation.
#pragma once

#include "twell/context.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

namespace twell {

// y = x Wᵀ + b. x is [M, D], W [N, D] packed, b [N] of the same dtype or null, y [M, N]. f32
// accumulation, y rounded once. Any M ≥ 0. Errors are twell::Error naming operation and argument.
void linear(Context& context, ConstMatrixView x, PackedView weight, const void* bias, MatrixView y);

}  // namespace twell
