#include "ops/forward/gate.h"

#include <algorithm>

#include "ops/scratch.h"

namespace twell {
namespace {

// Splits the neurons of a tile at column blocks: f(first panel, panels, first neuron, columns).
template <class F>
void for_each_column_block(std::int64_t neurons, std::int64_t tile, std::int64_t width, F f) {
  const std::int64_t end = std::min((tile + 1) * width, neurons);
  for (std::int64_t first = tile * width; first < end; first += kColumnBlock) {
    const std::int64_t columns = std::min(kColumnBlock, end - first);
    f(first / kPanel, packed_panels(columns), first, columns);
  }
}

}  // namespace

Gate::Gate(Context& context, const FfnPlan& plan, const FfnWeights& weights, DType x,
           const ActivationSpec& activation, std::span<const float> bias, const TwellView& out)
    : context_(context),
      plan_(plan),
      kernels_(kernels_of(plan.tier, x)),
      activation_(activation),
      bias_(bias),
      out_(out),
      weight_(plan.tier, x, weights.gate) {
  const std::int64_t width = weight_.cols;
  // The largest block's x, without its data.
  input_ = {{nullptr, x, plan.row_block, width}, kernels_.x, weight_.type};
  prepared_ = context.scratch(0, kPreparedX, input_.prepared_bytes());
  const auto sums = static_cast<std::size_t>(gemm_accumulators(plan.row_block)) * sizeof(float);
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kAccumulators, sums);
  if (weights.form() == GateForm::packed) {
    const std::size_t bytes = TermsInput::bytes(weight_, plan.row_block);
    terms_memory_ = static_cast<CodeTerms*>(context.scratch(0, kScreenedX, bytes));
    return;
  }
  screen_ = {weights.screen};
  const auto rows = static_cast<std::size_t>(plan.row_block);
  // In TileOrder, if rows are then more: whole blocks of inputs, and of 16 rows.
  const std::size_t bytes =
      static_cast<std::size_t>(TileOrder::blocks(width) * TileOrder::block(plan.row_block, 1));
  const std::size_t scales = rows * static_cast<std::size_t>(code_blocks(width)) * sizeof(float);
  x8_.x8 = static_cast<std::uint8_t*>(
      context.scratch(0, kScreenedX, bytes + scales + rows * sizeof(ScreenedRow)));
  x8_.scales = reinterpret_cast<float*>(x8_.x8 + bytes);
  x8_.rows = reinterpret_cast<ScreenedRow*>(x8_.x8 + bytes + scales);
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kCandidates, static_cast<std::size_t>(screen_pack_scratch(plan.row_block)));
  }
}

void Gate::begin(ConstMatrixView x) {
  input_.x = x;
  if (screen_.data == nullptr) terms_.begin(weight_, x, terms_memory_);
  x8_.x_block = kernels_.x8_block(x.rows);
  std::fill_n(out_.counts, x.rows * out_.tiles, 0);
}

void Gate::prepare_x(Team& team) {
  if (input_.in_place()) return;
  team.for_static(rows(), [&](std::int64_t r) { input_.prepare(r, r + 1, prepared_); });
}

std::int64_t Gate::group_begin(std::int64_t group) const {
  const bool tiles = screen_.data != nullptr ? x8_.x_block > 0 : kernels_.x.in_tiles(rows());
  const std::int64_t step = tiles ? TileOrder::kRows : 1;
  const std::int64_t begin = rows() * group / plan_.row_groups;
  return std::min((begin + step - 1) / step * step, rows());
}

std::int64_t Gate::run(Team& team) {
  auto* c = static_cast<float*>(context_.scratch(team.thread(), kAccumulators, 0));
  const bool screened = plan_.gate == GateForm::screened;
  if (screened) {
    team.for_static(rows(), [&](std::int64_t r) {
      kernels_.screen_row(input_.x.row_bytes(r), screen_, x8_.from(r, weight_.cols));
    });
  } else {
    terms_.prepare(team);
    if (!terms_.taken()) prepare_x(team);
  }
  void* candidates = screened ? context_.scratch(team.thread(), kCandidates, 0) : nullptr;
  std::int64_t computed = 0;
  team.for_static_chunk1(out_.tiles * plan_.row_groups, [&](std::int64_t unit) {
    // A thread that has a tile of its own keeps to it.
    const std::int64_t tile = unit % out_.tiles;
    const std::int64_t group = unit / out_.tiles;
    const std::int64_t begin = group_begin(group);
    const std::int64_t end = group_begin(group + 1);
    if (screened) {
      computed += run_screened(begin, end, tile, c, candidates);
    } else {
      run_packed(begin, end, tile, c);
    }
  });
  return computed;
}

PackArgs Gate::pack_args(const float* c, std::int64_t begin, std::int64_t end, std::int64_t first,
                         std::int64_t columns) const {
  const float* bias = bias_.empty() ? nullptr : bias_.data() + first;
  return {c, end - begin, first, columns, activation_, bias, out_, begin};
}

void Gate::run_packed(std::int64_t begin, std::int64_t end, std::int64_t tile, float* c) const {
  GemmArgs gemm = input_.args(prepared_, begin, end);
  gemm.terms = terms_.from(begin);
  gemm.weight = weight_;
  gemm.c = c;
  for_each_column_block(
      weight_.rows, tile, out_.tile,
      [&](std::int64_t panel, std::int64_t panels, std::int64_t first, std::int64_t columns) {
        gemm.panel_begin = panel;
        gemm.panels = panels;
        weight_.kernels->gemm(gemm);
        kernels_.pack(pack_args(c, begin, end, first, columns));
      });
}

std::int64_t Gate::run_screened(std::int64_t begin, std::int64_t end, std::int64_t tile, float* c,
                                void* candidates) const {
  const std::int64_t rows = end - begin;
  const ScreenedRows x8 = x8_.from(begin, weight_.cols);
  std::int64_t computed = 0;
  for_each_column_block(
      weight_.rows, tile, out_.tile,
      [&](std::int64_t panel, std::int64_t panels, std::int64_t first, std::int64_t columns) {
        kernels_.screen_gemm({x8, rows, screen_, panel, panels, c});
        computed += weight_.kernels->screen_pack({pack_args(c, begin, end, first, columns),
                                                  input_.x.slice(begin, rows), x8, weight_, screen_,
                                                  candidates});
      });
  return computed;
}

}  // namespace twell
