// Plain linear layers: y = x Wᵀ. x is [M, D], W [N, D], y [M, N]; x and y are of one dtype, bf16 or
// f32, and W of the same type.
// f32 accumulation, y rounded once. Any M ≥ 0. Errors are twell::Error naming operation and
// argument.
#pragma once

#include "twell/context.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

namespace twell {

// On a packed weight: the gate's GEMM without the activation. bias [N] of the same dtype, or null.
void linear(Context& context, ConstMatrixView x, const PackedWeight& weight, const void* bias,
            MatrixView y);

// On a weight as it is stored, for a few rows: W streams by once, at the bandwidth of memory.
// Correct for any M; above about eight rows a GEMM is faster. Made for logits, whose weight may be
// the embedding too and should not exist twice.
void linear_as_stored(Context& context, ConstMatrixView x, const WeightView& weight, MatrixView y);

}  // namespace twell
