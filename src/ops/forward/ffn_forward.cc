// The layer as training runs it: ffn() that also keeps where the gate fired.
#include <algorithm>
#include <atomic>
#include <limits>

#include "ops/forward/counts.h"
#include "ops/forward/forward_block.h"
#include "ops/forward/gate.h"
#include "ops/forward/hot_neurons.h"
#include "ops/forward/not_finite.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/train.h"

namespace twell {
namespace {

constexpr const char* kForward = "ffn_forward";

template <class T>
void run(Context& context, ConstMatrixView x, const FfnWeights& all, const FfnForm& form,
         MatrixView y, FfnPattern& pattern, FfnCounts& counts) {
  const FfnShape shape = all.shape(x.dtype);
  const FfnPlan plan = plan_ffn(context, x.rows, shape, all.form());
  const Kernels& kernels = kernels_of(plan.tier, x.dtype);
  const UpDown weights(plan.tier, x.dtype, all);
  const TwellView packed = scratch_activation(context, shape, plan.row_block, plan.tile);
  // Pre-activations, since backward needs the slope there.
  Gate gate(context, plan, all, x.dtype, {Activation::fat_relu, form.gate.kept_above()},
            form.gate_bias, packed);
  HotSet hot(context, shape.neurons);
  const HotScratch scratch = take_hot_scratch(context, plan, shape, weights.down.cols);
  const std::int64_t width = weights.down.cols;
  const auto row_bytes = static_cast<std::size_t>(width) * sizeof(float);
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kPartialY, row_bytes + RowPlaces::bytes(shape.neurons));
  }
  std::vector<double> l1(static_cast<std::size_t>(plan.row_block));
  std::vector<std::int32_t> cold_count(l1.size()), kept(l1.size());
  std::vector<float> scale(l1.size());
  for (std::int64_t first = 0; first < x.rows; first += plan.row_block) {
    const std::int64_t rows = std::min(plan.row_block, x.rows - first);
    const ConstMatrixView block_x = x.slice(first, rows);
    const MatrixView block_y = y.slice(first, rows);
    gate.begin(block_x);
    std::atomic<std::int64_t> candidates = 0;
    parallel(context, [&](Team& team) {
      candidates += gate.run(team);
      count_neurons(team, packed, rows, shape.neurons, hot.counts());
      hot.choose(team, plan.hot_share * static_cast<double>(rows) + plan.hot_rows, {weights.down});
    });
    counts.candidates += candidates;
    std::int32_t* const row_nnz = counts.row_nnz.data() + first;
    for (std::int64_t r = 0; r < rows; ++r) row_nnz[r] = packed.row_count(r);
    for (std::int64_t n = 0; n < shape.neurons; ++n) {
      counts.neuron_nnz[static_cast<std::size_t>(n)] += hot.counts()[n];
    }
    // What follows may allocate: no thread is running.
    pattern.append(row_nnz, rows);
    const std::int64_t* const offsets = pattern.view().offsets + first;
    const auto places = static_cast<std::size_t>(offsets[rows] - offsets[0]);
    auto* values = static_cast<float*>(
        context.scratch(0, kActive, places * (sizeof(float) + sizeof(std::int32_t))));
    // u of hot neurons, then sums.
    auto* sums = static_cast<float*>(context.scratch(
        0, kHotSums,
        hot.size() > 0
            ? static_cast<std::size_t>(rows * std::max(width, hot.size())) * sizeof(float)
            : 0));
    const ForwardBlock<T> block = {kernels,
                                   weights,
                                   form,
                                   packed,
                                   hot,
                                   scratch.hidden_of(kernels.x, hot.size()),
                                   sums,
                                   offsets,
                                   pattern.neurons(),
                                   static_cast<T*>(pattern.v()),
                                   static_cast<T*>(pattern.u()),
                                   reinterpret_cast<std::int32_t*>(values + places),
                                   values,
                                   cold_count.data(),
                                   kept.data(),
                                   scale.data()};
    parallel(context, [&](Team& team) {
      const int thread = team.thread();
      auto* own = static_cast<float*>(context.scratch(thread, kPartialY, 0));
      RowPlaces row_places(hot, shape.neurons, own + width);
      const auto fire = [&](std::int64_t row) {
        l1[static_cast<std::size_t>(row)] = block.fire(row, block_x.row_bytes(row), row_places);
      };
      if (hot.size() > 0) {
        auto* c = static_cast<float*>(context.scratch(thread, kAccumulators, 0));
        void* panels = context.scratch(thread, kHotPanels, 0);
        if (weights.up) {
          gate.prepare_x(team);
          GemmArgs args = gate.gemm_args();
          args.c = c;
          dot_all_chosen(team, args, {*weights.up, hot.list(), hot.size()}, panels,
                         copy_to(sums, hot.size()));
        }
        team.for_dynamic(rows, 4, fire);
        const ChosenTerm terms[] = {{block.hidden, {weights.down, hot.list(), hot.size()}}};
        combine_all_chosen(team, terms, rows, panels, c, sums);
      }
      team.for_dynamic_nowait(rows, 4, [&](std::int64_t row) {
        if (hot.size() == 0) fire(row);
        float* sum = hot.size() > 0 ? sums + row * width : own;
        block.gather(row, hot.size() > 0, sum);
        finish_row(kernels, form, weights.down, block.scale[row], 0, width, sum,
                   block_y.row_bytes(row));
      });
    });
    if (form.up != Activation::identity) pattern.keep(kept.data(), rows);
    for (std::int64_t row = 0; row < rows; ++row) counts.l1 += l1[static_cast<std::size_t>(row)];
  }
}

}  // namespace

void ffn_forward(Context& context, ConstMatrixView x, const FfnWeights& weights,
                 const FfnForm& form, MatrixView y, FfnPattern& pattern, FfnCounts* counts) {
  require_trained(kForward, weights.gate, weights.up, weights.down);
  require_ffn(kForward, x, weights, form, y);
  const FfnShape shape = weights.shape(x.dtype);
  FfnCounts own;
  FfnCounts& all = counts != nullptr ? *counts : own;
  all = zero_counts(x.rows, shape.neurons);
  pattern.reset(x.rows, shape);
  if (x.rows == 0) return;
  if (shape.dtype == DType::bf16) {
    run<bf16>(context, x, weights, form, y, pattern, all);
  } else {
    run<float>(context, x, weights, form, y, pattern, all);
  }
  if (spread_nan(context, x, {context.tier(), x.dtype, weights}, form, pattern.view(), y)) {
    all.l1 = std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace twell
