#include <algorithm>
#include <cstring>

#include "core/team.h"
#include "kernels/kernel.h"
#include "ops/ggml_rows.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/ggml.h"

namespace twell {
namespace {

constexpr const char* kName = "ggml_matmul";

// Where outputs go: chunks of one row, or one chunk of a row.
void put(const float* from, std::int64_t chunk, std::int64_t count, std::int64_t row,
         MatrixView y) {
  const std::int64_t width = std::min(count * kChunk, y.cols - chunk * kChunk);
  std::memcpy(y.row<float>(row) + chunk * kChunk, from,
              static_cast<std::size_t>(width) * sizeof(float));
}

}  // namespace

void ggml_matmul(Context& context, ConstMatrixView x, const GgmlMatrix& w, MatrixView y,
                 GgmlInputs inputs) {
  // Sums of 64 rows stay in L2, with the codes of a span: 384 KB and 24.
  constexpr std::int64_t kMostChunks = 48;
  require_matrix(kName, "x", x, DType::f32, x.rows, w.inputs());
  require_matrix(kName, "y", y, DType::f32, x.rows, w.outputs());
  require_apart(kName, "y", y, "x", x);

  const GgmlLayout layout(w.format(), w.order(), w.outputs(), w.inputs());
  const GgmlKernels& kernels = ggml_kernels_of(context.tier());
  const GgmlKernels::Product& multiply = kernels.product[static_cast<std::size_t>(w.format())];
  const auto* const memory = static_cast<const std::uint8_t*>(w.data());
  const bool dense = w.order() == GgmlOrder::outputs, rounded = inputs == GgmlInputs::rounded;
  // A piece of the outputs for each thread, or as many for each.
  const std::int64_t chunks = layout.chunks(), threads = context.threads();
  const std::int64_t turns = (chunks + threads * kMostChunks - 1) / (threads * kMostChunks);
  const std::int64_t piece = (chunks + threads * turns - 1) / (threads * turns);
  for (std::int64_t begin = 0; begin < x.rows; begin += kGgmlRows) {
    const std::int64_t rows = std::min(kGgmlRows, x.rows - begin);
    const GgmlRows prepared(context, layout, inputs, rows);
    const auto bytes = static_cast<std::size_t>(rows * piece * kChunk) * sizeof(float);
    for (int t = 0; t < context.threads(); ++t) context.scratch(t, kGgmlSums, bytes);
    parallel(context, [&](Team& team) {
      auto* const sums = static_cast<float*>(context.scratch(team.thread(), kGgmlSums, bytes));
      team.for_static(
          rows, [&](std::int64_t r) { prepared.prepare(kernels, x.row<float>(begin + r), r); });
      GgmlInputRow of[kGgmlRows];
      std::int64_t fired = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        of[r] = prepared.row(r, x.row<float>(begin + r));
        if (!dense) fired += prepared.count(r);
      }
      // To unpack all codes takes as long as to multiply them for one row as they are.
      const bool alone = !dense && (rows == 1 || fired < layout.inputs);
      const double share = static_cast<double>(fired) / static_cast<double>(rows * layout.inputs);
      GgmlKernels::Row* const one = rounded ? multiply.sparse_row : multiply.float_row;
      GgmlKernels::Rows* const together = !rounded ? multiply.float_rows
                                          : dense || share > multiply.most_sparse
                                              ? multiply.dense_rows
                                              : multiply.sparse_rows;
      team.for_dynamic_nowait((chunks + piece - 1) / piece, 1, [&](std::int64_t p) {
        const std::int64_t first = p * piece, last = std::min(first + piece, chunks);
        if (alone) {
          for (std::int64_t r = 0; r < rows; ++r) {
            one(layout, memory, of[r], first, last, sums);
            put(sums, first, last - first, begin + r, y);
          }
          return;
        }
        std::fill_n(sums, rows * (last - first) * kChunk, 0.0F);
        for (std::int64_t at = 0; at < layout.inputs; at += GgmlLayout::kSpan) {
          together(layout, memory, of, rows, at, first, last, sums);
        }
        const float* from = sums;
        for (std::int64_t c = first; c < last; ++c) {
          for (std::int64_t r = 0; r < rows; ++r, from += kChunk) put(from, c, 1, begin + r, y);
        }
      });
    });
  }
}

}  // namespace twell
