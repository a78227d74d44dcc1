#include "twell/linear.h"

#include <algorithm>

#include "ops/gemm_input.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/terms_input.h"
#include "ops/validate.h"

namespace twell {
namespace {

// Adds the bias, if any, to columns [column, column + width) of a row of accumulators and rounds
// them into y.
void store_row(const Kernels& kernels, float* c, std::int64_t width, const void* bias, MatrixView y,
               std::int64_t row, std::int64_t column) {
  for (std::int64_t j = 0; bias != nullptr && j < width; ++j) {
    c[j] += y.dtype == DType::f32 ? static_cast<const float*>(bias)[column + j]
                                  : static_cast<float>(static_cast<const bf16*>(bias)[column + j]);
  }
  kernels.round_row(c, width,
                    y.row_bytes(row) + column * static_cast<std::int64_t>(size_of(y.dtype)));
}

void multiply(Context& context, ConstMatrixView x, const Weight& weight, const void* bias,
              MatrixView y) {
  const Kernels& kernels = kernels_of(context.tier(), x.dtype);
  const GemmInput input = {x, kernels.x, weight.type};
  const std::int64_t panels = packed_panels(weight.rows);
  std::int64_t block = gemm_rows(context.tier(), row_block(context.tier(), x.rows), weight.cols);
  // Four panels at least, what a register kernel takes at once; where those are too few for the
  // threads, fewer rows, which read the weight more often.
  constexpr std::int64_t kLeastRows = 64;
  while (block >= 2 * kLeastRows && (x.rows + block - 1) / block * panels / 4 < context.threads()) {
    block = (block / 2 + 31) / 32 * 32;
  }
  const std::int64_t row_blocks = (x.rows + block - 1) / block;
  // Four pieces per thread at least.
  const std::int64_t step = std::clamp<std::int64_t>(
      row_blocks * panels / (4L * context.threads()) / 4 * 4, 4, kColumnBlock / kPanel);
  const std::int64_t pieces = (panels + step - 1) / step;

  TermsInput terms;
  terms.begin(
      weight, x,
      static_cast<CodeTerms*>(context.scratch(0, kScreenedX, TermsInput::bytes(weight, x.rows))));
  void* prepared =
      input.in_place() ? nullptr : context.scratch(0, kPreparedX, input.prepared_bytes());
  const auto bytes = static_cast<std::size_t>(gemm_accumulators(block)) * sizeof(float);
  for (int t = 0; t < context.threads(); ++t) context.scratch(t, kAccumulators, bytes);
  parallel(context, [&](Team& team) {
    auto* c = static_cast<float*>(context.scratch(team.thread(), kAccumulators, bytes));
    terms.prepare(team);
    if (!terms.taken() && !input.in_place()) {
      team.for_static(x.rows, [&](std::int64_t r) { input.prepare(r, r + 1, prepared); });
    }
    team.for_dynamic_nowait(row_blocks * pieces, 1, [&](std::int64_t unit) {
      const std::int64_t row = unit / pieces * block;
      GemmArgs args = input.args(prepared, row, std::min(row + block, x.rows));
      args.terms = terms.from(row);
      args.weight = weight;
      args.panel_begin = unit % pieces * step;
      args.panels = std::min(step, panels - args.panel_begin);
      args.c = c;
      weight.kernels->gemm(args);
      const std::int64_t column = args.panel_begin * kPanel;
      const std::int64_t width = std::min(args.panels * kPanel, weight.rows - column);
      for (std::int64_t r = 0; r < args.rows; ++r) {
        store_row(kernels, c + r * kSumStride, width, bias, y, row + r, column);
      }
    });
  });
}

}  // namespace

void linear(Context& context, ConstMatrixView x, const WeightView& weight, const void* bias,
            MatrixView y) {
  constexpr const char* kOperation = "linear";
  require_panels(kOperation, "weight", weight);
  require_x(kOperation, x, weight);
  require_matrix(kOperation, "y", y, x.dtype, x.rows, weight.rows);
  require_apart(kOperation, "y", y, "x", x);
  // A kernel may want a copy of x, in scratch that stays: 16 MiB of bf16 at D = 2048, 9 of terms.
  const std::int64_t most_rows = has_scales(weight.type) ? 1024 : 4096;
  const Weight w(context.tier(), x.dtype, weight);
  for (std::int64_t row = 0; row < x.rows; row += most_rows) {
    const std::int64_t rows = std::min(most_rows, x.rows - row);
    multiply(context, x.slice(row, rows), w, bias, y.slice(row, rows));
  }
}

}  // namespace twell
