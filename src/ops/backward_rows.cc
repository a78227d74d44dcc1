// dh where the gate fired, what follows from it, and dx: no [M, H] is ever made.
#include <omp.h>

#include <algorithm>

#include "ops/backward_block.h"
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
      0, kBlockPlaces, static_cast<std::size_t>(3 * places + rows_most) * sizeof(float)));
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kActive, static_cast<std::size_t>(in.pattern.hidden) * 8);
    context.scratch(t, kPartialY, static_cast<std::size_t>(width) * sizeof(float));
    if (hot.size() == 0) continue;
    context.scratch(t, kAccumulators,
                    static_cast<std::size_t>(gemm_accumulators(rows_most)) * sizeof(float));
    context.scratch(t, kHotPanels, chosen_panel_bytes(in.gate.dtype, std::max(width, in.dy.cols)));
  }
  BackwardBlock<T> block{call,
                         static_cast<const T*>(in.pattern.v),
                         static_cast<const T*>(in.pattern.u),
                         nullptr,
                         {},
                         block_places,
                         block_places + places,
                         block_places + 2 * places,
                         reinterpret_cast<std::int32_t*>(block_places + 3 * places)};
  GemmInput dy = {{nullptr, in.dy.dtype, rows_most, in.dy.cols}, kernels.x};
  void* prepared = nullptr;
  float* sums = nullptr;
  if (hot.size() > 0) {
    prepared = context.scratch(0, kPreparedX, dy.prepared_bytes());
    sums = static_cast<float*>(
        context.scratch(0, kHotSums, static_cast<std::size_t>(rows_most * width) * sizeof(float)));
    const std::int64_t stride = SparseX::stride_of(kernels.x, rows_most, hot.size());
    const auto bytes = static_cast<std::size_t>(rows_most * stride) * size_of(kernels.x.dtype);
    auto* data = static_cast<std::byte*>(context.scratch(0, kHotHidden, kCoefficientKinds * bytes));
    for (int kind = 0; kind < kCoefficientKinds; ++kind) {
      if (call.has(kind)) {
        block.hot[kind] = {data + static_cast<std::size_t>(kind) * bytes, stride, kernels.x.dtype};
      }
    }
  }
  for (std::int64_t first = 0; first < in.dy.rows; first += rows_most) {
    const std::int64_t rows = std::min(rows_most, in.dy.rows - first);
    block.first_row = first;
    block.offsets = in.pattern.offsets + first;
    dy.x = in.dy.slice(first, rows);
    const MatrixView dx = call.out.dx.slice(first, rows);
#pragma omp parallel num_threads(plan.threads)
    {
      const int thread = omp_get_thread_num();
      auto* list = static_cast<std::int32_t*>(context.scratch(thread, kActive, 0));
      auto* values = reinterpret_cast<float*>(list + in.pattern.hidden);
      auto* own = static_cast<float*>(context.scratch(thread, kPartialY, 0));
      if (hot.size() > 0) {
        auto* c = static_cast<float*>(context.scratch(thread, kAccumulators, 0));
        void* panels = context.scratch(thread, kHotPanels, 0);
        if (!dy.in_place()) {
#pragma omp for schedule(static)
          for (std::int64_t r = 0; r < rows; ++r) dy.prepare(r, r + 1, prepared);
        }
        GemmArgs args = dy.args(prepared, 0, rows);
        args.c = c;
        dot_all_chosen(kernels, args, {in.down, hot.list(), hot.size()}, panels,
                       [&](std::int64_t row, std::int64_t n, std::int64_t count, const float* dh) {
                         block.take_hot(row, n, count, dh);
                       });
#pragma omp for schedule(dynamic, 4)
        for (std::int64_t row = 0; row < rows; ++row) block.differentiate(row, list, values);
#pragma omp for schedule(static) nowait
        for (std::int64_t n = 0; n < hot.size(); n += kPanel) {
          block.transpose_hot(n, std::min(n + kPanel, hot.size()), rows);
        }
        const ChosenTerm terms[] = {
            {block.hot[kDv], {in.gate, hot.list(), hot.size()}},
            {block.hot[kDu], {in.up.value_or(in.gate), hot.list(), hot.size()}}};
        combine_all_chosen(kernels, {terms, in.up ? 2U : 1U}, rows, panels, c, sums);
      }
#pragma omp for schedule(dynamic, 4)
      for (std::int64_t row = 0; row < rows; ++row) {
        if (hot.size() == 0) block.differentiate(row, list, values);
        float* sum = hot.size() > 0 ? sums + row * width : own;
        block.gather(row, list, values, hot.size() > 0, sum);
        kernels.round_row(sum, width, dx.row_bytes(row));
      }
    }
  }
}

}  // namespace

void backward_rows(Context& context, const BackwardCall& call) {
  if (call.in.gate.dtype == DType::bf16) {
    run<bf16>(context, call);
  } else {
    run<float>(context, call);
  }
}

}  // namespace twell
