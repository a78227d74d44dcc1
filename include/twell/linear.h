// Plain linear layers: y = x Wᵀ. x is [M, D], W [N, D], y [M, N], all of one type, bf16 or f32, or
// W int8 with a scale for each row. Sums are f32; y is rounded once. M may be 0. An error is a
// twell::Error that names operation and argument.
#pragma once

#include "twell/context.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

namespace twell {

// On a packed weight (PackedWeight::view()), by the gate's GEMM without the activation. `bias` is
// [N] of the same dtype, or null.
void linear(Context& context, ConstMatrixView x, const WeightView& weight, const void* bias,
            MatrixView y);

// On a weight as it is stored, for a few rows. W is read once, at the bandwidth of memory. Any M is
// correct; above about eight rows a GEMM is faster. It serves logits: their weight may be the
// embedding too, and should not exist twice.
void linear_as_stored(Context& context, ConstMatrixView x, const WeightView& weight, MatrixView y);

}  // namespace twell
