// Neurons that a good part of a block's rows fire: their rows of up and down are multiplied densely
// with the whole block, which is cheaper than reading them once for every row that needs them. What
// stays in the packed gate is left to the row gather.
#pragma once

#include "ops/gate.h"

namespace twell {

class HotNeurons {
 public:
  // Neurons of a unit of work on up: 512 KB of panels at D = 2048.
  static constexpr std::int64_t kUpNeurons = 128;
  // Neurons of one pass over the columns of a unit of down. Not 512: the panels would lie 16 KB
  // apart, all in the same sets of L1.
  static constexpr std::int64_t kDownDepth = 480;

  // Takes its scratch.
  HotNeurons(Context& context, const FfnPlan& plan, const FfnWeights& weights);

  // The following are called by every thread of a parallel region, in this order, after `gate` of
  // the block is packed; each ends with a barrier.

  // Counts the rows that fired each neuron, and chooses.
  void count(const Gate& gate);
  // Moves the hot neurons' values out of the packed gate.
  void take(const Gate& gate);
  // sums() = their part of up and down. Needs gate.prepare_x().
  void multiply(const Gate& gate, int thread);

  const std::int32_t* neuron_nnz() const { return counts_; }  // [H], of the block
  std::int64_t size() const { return size_; }
  // f32 [rows, D] of the block; null where it has no hot neurons.
  float* sums() const { return size_ > 0 ? sums_ : nullptr; }

 private:
  void choose();
  std::int64_t hidden_stride() const;
  std::byte* hidden_at(std::int64_t row, std::int64_t neuron) const;
  void take_row(const TwellView& packed, std::int64_t row);
  void up(const Gate& gate, std::int64_t first, float* accumulators, std::byte* panels) const;
  void down(std::int64_t rows, std::int64_t column, float* accumulators, std::byte* panels) const;

  Context& context_;
  const FfnPlan& plan_;
  const std::optional<ConstMatrixView>& up_;
  ConstMatrixView down_;
  const Kernels& kernels_;
  std::int64_t size_ = 0;
  std::int32_t* counts_ = nullptr;  // [H] rows of the block that fired it
  std::int32_t* list_ = nullptr;    // [H] hot neurons, ascending
  std::int32_t* place_ = nullptr;   // [H] in list_, or -1
  std::byte* hidden_ = nullptr;  // [rows, hidden_stride()] of the dtype of the GEMM's x: g, then h
  float* sums_ = nullptr;
};

}  // namespace twell
