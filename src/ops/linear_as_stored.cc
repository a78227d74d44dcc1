#include <algorithm>
#include <numeric>
#include <vector>

#include "core/team.h"
#include "ops/chosen_products.h"
#include "ops/gemm_input.h"
#include "ops/product_rows.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/linear.h"

namespace twell {
namespace {

// Sampled dot products, of all outputs in order. W is read once.
void dots_of_few(Context& context, ConstMatrixView x, const Weight& w, const ProductRows& y) {
  // 256 KB at D = 2048: from the second row of x on, a piece comes from L2.
  constexpr std::int64_t kPiece = 64;
  const std::int64_t pieces = (w.rows + kPiece - 1) / kPiece;
  // Each thread goes through a stretch of memory of its own.
  parallel_for(context, pieces, [&](std::int64_t piece) {
    const std::int64_t first = piece * kPiece;
    const std::int64_t count = std::min(kPiece, w.rows - first);
    std::int32_t outputs[kPiece];
    std::iota(outputs, outputs + count, static_cast<std::int32_t>(first));
    for (std::int64_t row = 0; row < x.rows; ++row) {
      float values[kPiece];
      w.dots(x.row_bytes(row), outputs, count, values);
      y.put(row, first, count, values);
    }
  });
}

// A GEMM, for which pieces of W are packed on the way.
void multiply_many(Context& context, ConstMatrixView x, const Weight& w, const ProductRows& y) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(w.rows));
  std::iota(all.begin(), all.end(), 0);
  const GemmInput input = {x, kernels_of(context.tier(), x.dtype).x, w.panel_type};
  void* const prepared =
      input.in_place() ? nullptr : context.scratch(0, kPreparedX, input.prepared_bytes());
  const auto sums = static_cast<std::size_t>(gemm_accumulators(x.rows)) * sizeof(float);
  const std::size_t panels = chosen_panel_bytes(w.panel_type, w.cols);
  for (int t = 0; t < context.threads(); ++t) {
    context.scratch(t, kAccumulators, sums);
    context.scratch(t, kHotPanels, panels);
  }
  parallel(context, [&](Team& team) {
    if (!input.in_place()) {
      team.for_static(x.rows, [&](std::int64_t r) { input.prepare(r, r + 1, prepared); });
    }
    GemmArgs args = input.args(prepared, 0, x.rows);
    args.c = static_cast<float*>(context.scratch(team.thread(), kAccumulators, sums));
    dot_all_chosen(team, args, {w, all.data(), w.rows},
                   context.scratch(team.thread(), kHotPanels, panels),
                   [&](std::int64_t row, std::int64_t first, std::int64_t count,
                       const float* values) { y.put(row, first, count, values); });
  });
}

}  // namespace

void linear_as_stored(Context& context, ConstMatrixView x, const WeightView& weight, MatrixView y) {
  constexpr const char* kOperation = "linear_as_stored";
  // Five rows take as long either way at D = 2048 with AMX, where eight take twice as long row by
  // row.
  constexpr std::int64_t kFewRows = 4, kMostRows = 512;
  require_weight_shape(kOperation, "weight", weight.type, weight.rows, weight.cols);
  require_matrix(kOperation, "x", x, x.dtype, x.rows, x.cols);
  require_weight(kOperation, "weight", weight, x.dtype, weight.rows, x.cols);
  require_scaled_by(kOperation, "weight", weight, ScaledBy::row);
  require_product(kOperation, x, weight.rows, y);

  const Weight w(context.tier(), x.dtype, weight);
  const ProductRows to(context, y);
  if (x.rows <= kFewRows || has_scales(weight.type)) return dots_of_few(context, x, w, to);
  const std::int64_t passes = (x.rows + kMostRows - 1) / kMostRows;  // each packs all of W
  const std::int64_t most = (x.rows + passes - 1) / passes;
  for (std::int64_t first = 0; first < x.rows; first += most) {
    const std::int64_t rows = std::min(most, x.rows - first);
    multiply_many(context, x.slice(first, rows), w, {context, y.slice(first, rows)});
  }
}

}  // namespace twell
