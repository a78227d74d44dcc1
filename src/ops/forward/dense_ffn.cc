#include "ops/forward/dense_ffn.h"

#include <algorithm>
#include <vector>

#include "ops/forward/counts.h"
#include "ops/forward/dense_hidden.h"
#include "ops/multiply.h"

namespace twell {
namespace {

// Rows whose hidden state is in memory at a time: 2.9 MB of bf16 at H = 5632. With 512 of them a
// product takes 5 % longer (Zen 4).
constexpr std::int64_t kDenseRows = 256;

// Those of a block's hidden state from row `first` on, before up is multiplied in.
template <class T>
void add_counts(const Context& context, ConstMatrixView gate, std::int64_t first,
                FfnCounts& counts) {
  parallel_for(context, gate.rows, [&](std::int64_t r) {
    const T* row = gate.row<T>(r);
    counts.row_nnz[static_cast<std::size_t>(first + r)] = static_cast<std::int32_t>(
        std::count_if(row, row + gate.cols, [](T g) { return static_cast<float>(g) != 0.0F; }));
  });
  constexpr std::int64_t kColumns = 64;  // a line of f32 or two of counts: threads share none
  parallel_for(context, (gate.cols + kColumns - 1) / kColumns, [&](std::int64_t piece) {
    const std::int64_t begin = piece * kColumns, end = std::min(begin + kColumns, gate.cols);
    for (std::int64_t r = 0; r < gate.rows; ++r) {
      const T* row = gate.row<T>(r);
      for (std::int64_t n = begin; n < end; ++n) {
        counts.neuron_nnz[static_cast<std::size_t>(n)] += static_cast<float>(row[n]) != 0.0F;
      }
    }
  });
}

void add_bias(std::span<const float> bias, std::int64_t column, std::int64_t width, float* c) {
  if (bias.empty()) return;
  const float* const from = bias.data() + column;
  for (std::int64_t j = 0; j < width; ++j) c[j] += from[j];
}

}  // namespace

void dense_ffn(Context& context, ConstMatrixView x, const DenseWeights& weights,
               const FfnForm& form, MatrixView y, FfnCounts* counts) {
  const std::int64_t neurons = weights.gate.rows;
  if (counts != nullptr) *counts = zero_counts(x.rows, neurons);
  const Kernels& kernels = kernels_of(context.tier(), x.dtype);
  const Kernels& of_sums = kernels_of(context.tier(), DType::f32);
  const auto weight = [&](const WeightView& w) { return Weight(context.tier(), x.dtype, w); };
  const auto element = static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t block = std::min(kDenseRows, x.rows);
  void* const memory =
      context.scratch(0, kHotHidden, static_cast<std::size_t>(block * neurons * element));
  std::vector<float> scales(scales_hidden(form) ? static_cast<std::size_t>(block) : 0);
  for (std::int64_t first = 0; first < x.rows; first += block) {
    const ConstMatrixView in = x.slice(first, std::min(block, x.rows - first));
    const MatrixView hidden(memory, x.dtype, in.rows, neurons);
    const float above = form.gate.kept_above();  // NaN is kept too
    const bool squared = form.gate.kind == Activation::relu_squared;
    multiply(context, in, weight(weights.gate),
             [&](std::int64_t row, std::int64_t column, std::int64_t width, float* c) {
               add_bias(form.gate_bias, column, width, c);
               for (std::int64_t j = 0; j < width; ++j) c[j] = c[j] <= above ? 0.0F : c[j];
               if (squared) {
                 for (std::int64_t j = 0; j < width; ++j) c[j] *= c[j];
               }
               kernels.round_row(c, width, hidden.row_bytes(row) + column * element);
             });
    if (counts != nullptr) {
      x.dtype == DType::bf16 ? add_counts<bf16>(context, hidden, first, *counts)
                             : add_counts<float>(context, hidden, first, *counts);
    }
    if (weights.up) {
      std::vector<std::uint8_t> finite(static_cast<std::size_t>(in.rows));
      parallel_for(context, in.rows, [&](std::int64_t r) {
        finite[static_cast<std::size_t>(r)] = kernels.all_finite(in.row_bytes(r), in.cols);
      });
      multiply(
          context, in, weight(*weights.up),
          [&](std::int64_t row, std::int64_t column, std::int64_t width, float* c) {
            add_bias(form.up_bias, column, width, c);
            activate_up(form, width, c);
            std::byte* const h = hidden.row_bytes(row) + column * element;
            const bool row_finite = finite[static_cast<std::size_t>(row)] != 0;
            if (row_finite && kernels.x.dtype == x.dtype) {
              kernels.multiply_nonzeros(c, width, h);
              return;
            }
            const bool guarded = row_finite && !of_sums.all_finite(c, width);
            x.dtype == DType::bf16
                ? widen_times(reinterpret_cast<const bf16*>(h), width, guarded, c)
                : widen_times(reinterpret_cast<const float*>(h), width, guarded, c);
            kernels.round_row(c, width, h);
          },
          weights.up->type == weights.gate.type);
    }
    if (scales_hidden(form)) {
      x.dtype == DType::bf16 ? scale_hidden<bf16>(context, kernels, form, hidden, scales)
                             : scale_hidden<float>(context, kernels, form, hidden, scales);
    }
    multiply(context, hidden, weight(weights.down),
             [&](std::int64_t row, std::int64_t column, std::int64_t width, float* c) {
               const float scale = scales.empty() ? 1.0F : scales[static_cast<std::size_t>(row)];
               finish_row(kernels, form, weights.down, scale, column, width, c,
                          y.row_bytes(first + row) + column * element);
             });
  }
}

}  // namespace twell
