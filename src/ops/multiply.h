// A product with a packed weight, x Wᵀ, piece by piece.
#pragma once

#include <algorithm>

#include "core/team.h"
#include "ops/gemm_input.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/terms_input.h"

namespace twell {

// How a product is cut: into blocks of rows by pieces of panels, for the threads to share.
struct ProductPieces {
  ProductPieces(const Context& context, std::int64_t rows, const Weight& weight);

  std::int64_t rows, row_block, panels, step;  // step: panels of a piece
  std::int64_t pieces() const { return (panels + step - 1) / step; }
  std::int64_t count() const { return (rows + row_block - 1) / row_block * pieces(); }
};

// store(row, column, width, c) is given f32 sums of columns [column, column + width) of a row,
// which it may change. It throws nothing. `again`: x and the type of the weight are those of the
// context's last product, so that x is there as the kernel reads it.
template <class Store>
void multiply(Context& context, ConstMatrixView x, const Weight& weight, const Store& store,
              bool again = false) {
  const GemmInput input = {x, kernels_of(context.tier(), x.dtype).x, weight.type};
  const ProductPieces cut(context, x.rows, weight);
  TermsInput terms;
  terms.begin(
      weight, x,
      static_cast<CodeTerms*>(context.scratch(0, kScreenedX, TermsInput::bytes(weight, x.rows))));
  void* prepared =
      input.in_place() ? nullptr : context.scratch(0, kPreparedX, input.prepared_bytes());
  const auto bytes = static_cast<std::size_t>(gemm_accumulators(cut.row_block)) * sizeof(float);
  for (int t = 0; t < context.threads(); ++t) context.scratch(t, kAccumulators, bytes);
  parallel(context, [&](Team& team) {
    auto* c = static_cast<float*>(context.scratch(team.thread(), kAccumulators, bytes));
    terms.prepare(team);
    if (!terms.taken() && !input.in_place() && !again) {
      team.for_static(x.rows, [&](std::int64_t r) { input.prepare(r, r + 1, prepared); });
    }
    team.for_dynamic_nowait(cut.count(), 1, [&](std::int64_t unit) {
      const std::int64_t row = unit / cut.pieces() * cut.row_block;
      GemmArgs args = input.args(prepared, row, std::min(row + cut.row_block, x.rows));
      args.terms = terms.from(row);
      args.weight = weight;
      args.panel_begin = unit % cut.pieces() * cut.step;
      args.panels = std::min(cut.step, cut.panels - args.panel_begin);
      args.c = c;
      weight.kernels->gemm(args);
      const std::int64_t column = args.panel_begin * kPanel;
      const std::int64_t width = std::min(args.panels * kPanel, weight.rows - column);
      for (std::int64_t r = 0; r < args.rows; ++r) {
        store(row + r, column, width, c + r * kSumStride);
      }
    });
  });
}

}  // namespace twell
