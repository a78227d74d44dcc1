// The gradients of biases and of a norm's weight: sums over rows, which ascend.
#include <algorithm>

#include "ops/backward/weight_gradients.h"

namespace twell {
namespace {

// One of a vector with an entry for each neuron: the sum of its coefficients.
void sum_coefficients(const Context& context, const BackwardCall& call, Coefficient kind,
                      std::span<float> out) {
  if (out.empty()) return;
  const std::int64_t rows = call.in.x.rows;
  parallel_for(context, call.in.pattern.cols, [&](std::int64_t n) {
    double sum = 0.0;
    if (call.hot.contains(static_cast<std::int32_t>(n))) {
      const std::int64_t place = call.hot.place(static_cast<std::int32_t>(n));
      for (std::int64_t r = 0; r < rows; ++r) sum += call.columns[kind].value(place, r);
    } else {
      const float* entries = call.entries[kind] + call.by_neuron.offsets[n];
      for (std::int64_t i = 0; i < call.by_neuron.count(n); ++i) sum += entries[i];
    }
    float& to = out[static_cast<std::size_t>(n)];
    to = static_cast<float>(call.out.accumulate ? to + sum : sum);
  });
}

// Σ dy, column by column.
template <class T>
void sum_rows(const Context& context, const BackwardCall& call, std::span<float> out) {
  constexpr std::int64_t kColumns = 64;  // two cache lines of bf16, to read of each row
  const ConstMatrixView& dy = call.in.dy;
  parallel_for(context, (dy.cols + kColumns - 1) / kColumns, [&](std::int64_t piece) {
    const std::int64_t first = piece * kColumns;
    double sums[kColumns] = {};
    const std::int64_t count = std::min(kColumns, dy.cols - first);
    for (std::int64_t r = 0; r < dy.rows; ++r) {
      const T* row = dy.row<T>(r) + first;
      for (std::int64_t k = 0; k < count; ++k) sums[k] += static_cast<float>(row[k]);
    }
    for (std::int64_t k = 0; k < count; ++k) {
      float& to = out[static_cast<std::size_t>(first + k)];
      to = static_cast<float>(call.out.accumulate ? to + sums[k] : sums[k]);
    }
  });
}

}  // namespace

void sum_vector_gradients(const Context& context, const BackwardCall& call) {
  const FormVectors<std::span<float>>& out = call.out.vectors;
  sum_coefficients(context, call, kDv, out.gate_bias);
  sum_coefficients(context, call, kDu, out.up_bias);
  sum_coefficients(context, call, kDw, out.norm_weight);
  if (out.down_bias.empty()) return;
  if (call.in.dy.dtype == DType::bf16) {
    sum_rows<bf16>(context, call, out.down_bias);
  } else {
    sum_rows<float>(context, call, out.down_bias);
  }
}

}  // namespace twell
