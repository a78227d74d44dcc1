// The weight gradients of a call, and how a neuron's row of one is stored.
#pragma once

#include <algorithm>

#include "ops/backward/backward.h"

namespace twell {

// One weight gradient: dW row n = Σ over the rows that fired n of coefficient · (input row).
struct WeightGradient {
  int kind;
  ConstMatrixView input;  // x or dy, [M, cols]
  MatrixView out;         // [H, cols]
};

struct WeightGradients {
  WeightGradient all[kCoefficientKinds];
  int count = 0;
};

inline WeightGradients gradients_of(const BackwardCall& call) {
  WeightGradients out;
  out.all[out.count++] = {kDv, call.in.x, call.out.gate};
  if (call.out.up) out.all[out.count++] = {kDu, call.in.x, *call.out.up};
  out.all[out.count++] = {kH, call.in.dy, call.out.down};
  return out;
}

// `width` columns of a row of `out`, from f32.
inline void store(const Kernels& kernels, const MatrixView& out, std::int64_t row,
                  std::int64_t column, std::int64_t width, const float* from, bool accumulate) {
  std::byte* to = out.row_bytes(row) + static_cast<std::size_t>(column) * size_of(out.dtype);
  if (out.dtype != DType::f32) {
    kernels.round_row(from, width, to);
    return;
  }
  auto* sums = reinterpret_cast<float*>(to);
  if (accumulate) {
    for (std::int64_t k = 0; k < width; ++k) sums[k] += from[k];
  } else {
    std::copy_n(from, width, sums);
  }
}

// Neurons that few rows fired; clears the rows of those that none did.
void gather_weight_gradients(Context& context, const BackwardCall& call);
// Hot neurons, by GEMMs over all rows.
void multiply_weight_gradients(Context& context, const BackwardCall& call);
// Those of a form's vectors: sums over rows.
void sum_vector_gradients(const Context& context, const BackwardCall& call);

}  // namespace twell
