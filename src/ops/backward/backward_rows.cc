// dh where the gate fired, what follows from it, and dx: no [M, H] is ever made.
#include <algorithm>

#include "ops/backward/backward_block.h"
#include "ops/backward/packed_chosen.h"
#include "ops/gemm_input.h"
#include "ops/scratch.h"

namespace twell {
namespace {

template <class T>
void run(Context& context, const BackwardCall& call) {
  const FfnBackward& in = call.in;
  const FfnPlan& plan = call.plan;
  const Kernels& kernels = call.kernels;
  const std::int64_t width = in.gate.cols;
  const std::int64_t rows_most = plan.row_block;
  const HotSet& hot = call.hot;
  std::int64_t places = 0;  // of a block, at most
  for (std::int64_t first = 0; first < in.dy.rows; first += rows_most) {
    const std::int64_t end = std::min(first + rows_most, in.dy.rows);
    places = std::max(places, in.pattern.offsets[end] - in.pattern.offsets[first]);
  }
  auto* block_places = static_cast<float*>(context.scratch(
      0, kActive, static_cast<std::size_t>(3 * places + rows_most) * sizeof(float)));
  const auto row_bytes = static_cast<std::size_t>(width) * sizeof(float);
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kPartialY, row_bytes + RowPlaces::bytes(in.pattern.cols));
    if (hot.size() > 0) context.scratch(t, kAccumulators, packed_accumulator_bytes());
  }
  BackwardBlock<T> block{call,
                         static_cast<const T*>(in.pattern.v),
                         static_cast<const T*>(in.pattern.u),
                         nullptr,
                         {call, {}},
                         reinterpret_cast<std::int32_t*>(block_places),
                         block_places + places,
                         block_places + 2 * places,
                         reinterpret_cast<std::int32_t*>(block_places + 3 * places)};
  const auto chosen = [&](PackedChosen::As as, const Weight& w) {
    return PackedChosen(as, {w, hot.list(), hot.size()});
  };
  PackedChosen all_packed[] = {chosen(PackedChosen::As::neurons, call.down),
                               chosen(PackedChosen::As::inputs, call.gate),
                               chosen(PackedChosen::As::inputs, call.up.value_or(call.gate))};
  const std::span<PackedChosen> packed(all_packed, in.up ? 3U : 2U);
  GemmInput dy = {{nullptr, in.dy.dtype, rows_most, in.dy.cols}, kernels.x};
  void* prepared = nullptr;
  float* sums = nullptr;
  if (hot.size() > 0) {
    place_all(context, packed);
    parallel(context, [&](Team& team) { pack_all(team, packed); });
    prepared = context.scratch(0, kPreparedX, dy.prepared_bytes());
    // dh of hot neurons, then sums.
    const auto widest = static_cast<std::size_t>(std::max(width, hot.size()));
    sums = static_cast<float*>(
        context.scratch(0, kHotSums, static_cast<std::size_t>(rows_most) * widest * sizeof(float)));
    block.hot.dots = sums;
    const std::int64_t stride = SparseX::stride_of(kernels.x, hot.size());
    const auto bytes = static_cast<std::size_t>(rows_most * stride) * size_of(kernels.x.dtype);
    auto* data = static_cast<std::byte*>(context.scratch(0, kHotHidden, kCoefficientKinds * bytes));
    for (int kind = 0; kind < kCoefficientKinds; ++kind) {
      if (call.has(kind)) {
        block.hot.values[kind] = {data + static_cast<std::size_t>(kind) * bytes, stride,
                                  kernels.x.dtype};
      }
    }
  }
  for (std::int64_t first = 0; first < in.dy.rows; first += rows_most) {
    const std::int64_t rows = std::min(rows_most, in.dy.rows - first);
    block.first_row = first;
    block.offsets = in.pattern.offsets + first;
    dy.x = in.dy.slice(first, rows);
    const MatrixView dx = call.out.dx.slice(first, rows);
    parallel(context, [&](Team& team) {
      auto* own = static_cast<float*>(context.scratch(team.thread(), kPartialY, 0));
      RowPlaces row_places(hot, in.pattern.cols, own + width);
      if (hot.size() > 0) {
        auto* c = static_cast<float*>(context.scratch(team.thread(), kAccumulators, 0));
        if (!dy.in_place()) {
          team.for_static(rows, [&](std::int64_t r) { dy.prepare(r, r + 1, prepared); });
        }
        const PackedTerm to_h = {dy.args(prepared, 0, rows), all_packed[0].view()};
        multiply_all(team, kernels.x, {&to_h, 1}, c, copy_to(sums, hot.size()));
        team.for_dynamic(rows, 4, [&](std::int64_t row) { block.differentiate(row, row_places); });
        constexpr std::int64_t kUnit = BackwardHot<T>::kUnit;
        team.for_static_nowait((hot.size() + kUnit - 1) / kUnit, [&](std::int64_t unit) {
          const std::int64_t n = unit * kUnit;
          block.hot.transpose(n, std::min(n + kUnit, hot.size()), first, rows);
        });
        const PackedTerm terms[] = {{block.hot.values[kDv].args(rows), all_packed[1].view()},
                                    {block.hot.values[kDu].args(rows), all_packed[2].view()}};
        multiply_all(team, kernels.x, {terms, in.up ? 2U : 1U}, c, copy_to(sums, width));
      }
      team.for_dynamic_nowait(rows, 4, [&](std::int64_t row) {
        if (hot.size() == 0) block.differentiate(row, row_places);
        float* sum = hot.size() > 0 ? sums + row * width : own;
        block.gather(row, hot.size() > 0, sum);
        kernels.round_row(sum, width, dx.row_bytes(row));
      });
    });
  }
}

}  // namespace

void backward_rows(Context& context, const BackwardCall& call) {
  if (call.in.x.dtype == DType::bf16) {
    run<bf16>(context, call);
  } else {
    run<float>(context, call);
  }
}

}  // namespace twell
