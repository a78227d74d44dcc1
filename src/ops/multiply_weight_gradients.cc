// Weight gradients of hot neurons: GEMMs of their coefficients with all rows of x and dy.
#include <omp.h>

#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/weight_gradients.h"

namespace twell {

void multiply_weight_gradients(Context& context, const BackwardCall& call) {
  const WeightGradients gradients = gradients_of(call);
  const HotSet& hot = call.hot;
  const std::int64_t most = row_block(call.plan.tier, hot.size());
  for (int t = 0; t < call.plan.threads; ++t) {
    context.scratch(t, kAccumulators,
                    static_cast<std::size_t>(gemm_accumulators(most)) * sizeof(float));
    context.scratch(t, kHotPanels, chosen_panel_bytes(call.in.x.dtype, kColumnBlock));
  }
  const std::int64_t widest = std::max(call.in.x.cols, call.in.dy.cols);
  const std::int64_t columns = (widest + kColumnBlock - 1) / kColumnBlock;
  const std::int64_t blocks = (hot.size() + most - 1) / most;
#pragma omp parallel num_threads(call.plan.threads)
  {
    const int thread = omp_get_thread_num();
    auto* c = static_cast<float*>(context.scratch(thread, kAccumulators, 0));
    void* panels = context.scratch(thread, kHotPanels, 0);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < blocks * columns * gradients.count; ++unit) {
      const WeightGradient& gradient = gradients.all[unit % gradients.count];
      const std::int64_t column = unit / gradients.count % columns * kColumnBlock;
      const std::int64_t first = unit / gradients.count / columns * most;
      const std::int64_t neurons = std::min(most, hot.size() - first);
      const std::int64_t width = std::min(kColumnBlock, gradient.input.cols - column);
      if (width <= 0) continue;
      SparseX x = call.columns[gradient.kind];
      x.data = x.at(first, 0);
      combine_chosen(call.kernels, x, neurons, {gradient.input, nullptr, call.in.x.rows}, column,
                     width, false, panels, c);
      for (std::int64_t i = 0; i < neurons; ++i) {
        store(call.kernels, gradient.out, hot.list()[first + i], column, width,
              c + i * kColumnBlock, call.out.accumulate);
      }
    }
  }
}

}  // namespace twell
