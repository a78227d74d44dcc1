// Plain linear layers: y = x Wᵀ. x is [M, D], W is [N, D] and y is [M, N]. All are bf16 or all are
// f32, except that W may be codes with scales of its rows, and y may be f32. Sums are f32, and y is
// rounded once if it is bf16. M may be 0. An error is a twell::Error that names operation and
// argument.
#pragma once

#include "twell/context.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// y on a packed weight (PackedWeight::view()), by the gate's GEMM without the activation. `bias` is
// [N] of x's dtype, or null.
void linear(Context& context, ConstMatrixView x, const WeightView& weight, const void* bias,
            MatrixView y);

// y on a weight as it is stored. For up to four rows W is read once, at the bandwidth of memory;
// for more, pieces of it are packed in every call, except that codes are multiplied row by row.
// This is for logits: their weight may also be the embedding, and should not exist twice.
void linear_as_stored(Context& context, ConstMatrixView x, const WeightView& weight, MatrixView y);

// y = x, each block of 256 inputs of a row rounded to whole numbers of at most 7 bits times a power
// of 2, which bf16 holds: with a the block's largest |x| and 2ᵉ⁻¹ <= a < 2ᵉ,
//   y = u · round(x / u), ties to even; u = 2ᵉ⁻⁷ where a / u < 127.5, else 2ᵉ⁻⁶.
// So it changes no input by more than u / 2 <= a / 127, and rounding y again changes nothing. Any
// operation may read y, but products with weights of codes are then products of integers, at any
// number of rows: the fastest there are, and exact up to their f32 sums. Blocks with a number that
// is not finite, or with none of 10⁻³⁰ or more, stay as they are; numbers that would become
// infinite become 63 u. x and y are [M, D] of one dtype, bf16 or f32, and may be the same.
void round_inputs(Context& context, ConstMatrixView x, MatrixView y);

}  // namespace twell
#pragma GCC visibility pop
