// Neurons that a good part of a block's rows fire: their rows of up and down are multiplied densely
// with the whole block, which is cheaper than reading them once for every row that needs them. What
// stays in the packed gate is left to the row gather.
#pragma once

#include "ops/chosen_products.h"
#include "ops/forward/gate.h"
#include "ops/hot_set.h"

namespace twell {

// The hot neurons' part of a block of rows: g or h [rows, hot neurons], and sums f32 [rows, D].
struct HotScratch {
  SparseX hidden;
  float* sums = nullptr;

  // `hidden` for so many neurons.
  SparseX hidden_of(const XLayout& layout, std::int64_t neurons) const {
    return {hidden.data, SparseX::stride_of(layout, neurons), hidden.dtype};
  }
};
// Empty where the plan has no hot neurons. `columns`: of y.
HotScratch take_hot_scratch(Context& context, const FfnPlan& plan, const FfnShape& shape,
                            std::int64_t columns);

class HotNeurons {
 public:
  // Takes its scratch.
  HotNeurons(Context& context, const FfnPlan& plan, const FfnShape& shape, const UpDown& weights,
             const FfnForm& form);

  // The following are called by every thread of a parallel region, in this order, after `gate` of
  // the block is packed; each ends with a barrier.

  // Counts the rows that fired each neuron, and chooses.
  void count(Team& team, const Gate& gate);
  // Moves the hot neurons' values out of the packed gate.
  void take(Team& team, const Gate& gate);
  // sums() = their part of up and down. Needs gate.prepare_x().
  void multiply(Team& team, const Gate& gate);

  const std::int32_t* neuron_nnz() const { return set_.counts(); }  // [H], of the block
  std::int64_t size() const { return set_.size(); }
  // f32 [rows, D] of the block; null where it has no hot neurons.
  float* sums() const { return size() > 0 ? scratch_.sums : nullptr; }
  // Σ h² of each row; null where there is no norm.
  const double* squares() const {
    return size() > 0 && scales_hidden(form_) ? squares_.data() : nullptr;
  }

 private:
  // w h in place of h, of the block's rows.
  void scale_hidden(Team& team, std::int64_t rows);
  SparseX hidden() const { return scratch_.hidden_of(kernels_.x, size()); }

  Context& context_;
  const FfnPlan& plan_;
  const UpDown& weights_;
  const Kernels& kernels_;
  const FfnForm& form_;
  HotSet set_;
  HotScratch scratch_;
  std::vector<double> squares_;  // of the block's rows
};

// Rows of the block that fired each neuron, to `counts` [H]; called by every thread of a parallel
// region, ends with a barrier.
void count_neurons(Team& team, const TwellView& packed, std::int64_t rows, std::int64_t neurons,
                   std::int32_t* counts);

}  // namespace twell
