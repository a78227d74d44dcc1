#include "ops/forward/hot_neurons.h"

#include <algorithm>

#include "ops/hidden.h"
#include "ops/scratch.h"

namespace twell {

HotScratch take_hot_scratch(Context& context, const FfnPlan& plan, const FfnShape& shape,
                            std::int64_t columns) {
  HotScratch out;
  if (plan.hot_share > 1.0) return out;
  const XLayout& layout = kernels_of(plan.tier, shape.dtype).x;
  const auto rows = static_cast<std::size_t>(plan.row_block);
  const auto stride = static_cast<std::size_t>(SparseX::stride_of(layout, shape.neurons));
  out.hidden.dtype = layout.dtype;
  out.hidden.data = static_cast<std::byte*>(
      context.scratch(0, kHotHidden, rows * stride * size_of(layout.dtype)));
  out.sums = static_cast<float*>(
      context.scratch(0, kHotSums, rows * static_cast<std::size_t>(columns) * sizeof(float)));
  const std::size_t panels = chosen_panel_bytes(weight_type(shape.dtype), shape.width);
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kHotPanels, panels);
  return out;
}

HotNeurons::HotNeurons(Context& context, const FfnPlan& plan, const FfnShape& shape,
                       const UpDown& weights, const FfnForm& form)
    : context_(context),
      plan_(plan),
      weights_(weights),
      kernels_(kernels_of(plan.tier, shape.dtype)),
      form_(form),
      set_(context, shape.neurons),
      scratch_(take_hot_scratch(context, plan, shape, weights.down.cols)),
      squares_(scales_hidden(form) ? static_cast<std::size_t>(plan.row_block) : 0) {}

void count_neurons(Team& team, const TwellView& packed, std::int64_t rows, std::int64_t neurons,
                   std::int32_t* counts) {
  team.for_static_chunk1(packed.tiles, [&](std::int64_t t) {
    const std::int64_t first = t * packed.tile;
    std::fill(counts + first, counts + std::min(first + packed.tile, neurons), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      packed.for_each_slot(row, t, [&](std::int32_t neuron, float) { ++counts[neuron]; });
    }
  });
}

void HotNeurons::count(Team& team, const Gate& gate) {
  count_neurons(team, gate.out(), gate.rows(), weights_.down.rows, set_.counts());
  set_.choose(team, plan_.hot_share * static_cast<double>(gate.rows()) + plan_.hot_rows,
              {weights_.down});
}

void HotNeurons::take(Team& team, const Gate& gate) {
  const SparseX hidden = this->hidden();
  const TwellView& packed = gate.out();
  team.for_static(gate.rows(), [&](std::int64_t row) {
    hidden.clear_row(row);
    const auto store = [&](std::int32_t neuron, float value) {
      const std::int32_t place = set_.place(neuron);
      if (place < 0) return false;
      hidden.set(row, place, value);
      return true;
    };
    for (std::int64_t t = 0; t < packed.tiles; ++t) packed.remove_slots_if(row, t, store);
  });
}

void HotNeurons::scale_hidden(Team& team, std::int64_t rows) {
  const SparseX hidden = this->hidden();
  team.for_static(rows, [&](std::int64_t row) {
    double squares = 0.0;
    for (std::int64_t i = 0; i < size(); ++i) {
      const float h = hidden.value(row, i);
      squares += static_cast<double>(h) * h;
      if (h != 0.0F) hidden.set(row, i, scaled_hidden(form_, set_.list()[i], h));
    }
    squares_[static_cast<std::size_t>(row)] = squares;
  });
}

void HotNeurons::multiply(Team& team, const Gate& gate) {
  auto* accumulators = static_cast<float*>(context_.scratch(team.thread(), kAccumulators, 0));
  void* panels = context_.scratch(team.thread(), kHotPanels, 0);
  const SparseX hidden = this->hidden();
  if (weights_.up) {
    GemmArgs x = gate.gemm_args();
    x.c = accumulators;
    dot_all_chosen(team, x, {*weights_.up, set_.list(), size()}, panels,
                   [&](std::int64_t row, std::int64_t first, std::int64_t count, float* u) {
                     add_up_bias(form_, set_.list() + first, count, u);
                     activate_up(form_, count, u);
                     kernels_.multiply_nonzeros(u, count, hidden.at(row, first));
                   });
  }
  if (scales_hidden(form_)) scale_hidden(team, gate.rows());
  const ChosenTerm terms[] = {{hidden, {weights_.down, set_.list(), size()}}};
  combine_all_chosen(team, terms, gate.rows(), panels, accumulators, scratch_.sums);
}

}  // namespace twell
