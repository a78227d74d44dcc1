// Neurons that a good part of a block's rows fire: their rows of up and down are multiplied densely
// with the whole block, which is cheaper than reading them once for every row that needs them. What
// stays in the packed gate is left to the row gather.
#pragma once

#include "kernels/kernel.h"
#include "ops/gate.h"

namespace twell {

class HotNeurons {
 public:
  static constexpr std::int64_t kUpNeurons =
      128;  // of a unit of work: 512 KB of panels at D = 2048
  // Neurons of one pass over the columns of a unit. Not 512: the panels would lie 16 KB apart, all
  // in the same sets of L1.
  static constexpr std::int64_t kDownDepth = 480;

  // Takes its scratch; `rows` is the most of a block.
  HotNeurons(Context& context, const FfnPlan& plan, const FfnWeights& weights, std::int64_t rows);

  // The following are called by every thread of a parallel region, in this order, after `gate` of
  // the block is packed; each ends with a barrier.

  // Counts the rows that fired each neuron, and into `stats` (may be null; rows from first_row on).
  void count(const GateBlock& gate, FfnStats* stats, std::int64_t first_row);
  // Moves the hot neurons' values out of the packed gate.
  void take(const GateBlock& gate);
  // sums() = their part of up and down.
  void multiply(const GateBlock& gate, const void* prepared_x, int thread);

  std::int64_t size() const { return size_; }
  // f32 [rows, D] of the block; null where it has no hot neurons.
  float* sums() const { return size_ > 0 ? sums_ : nullptr; }

 private:
  void choose();
  std::int64_t hidden_stride() const;
  std::byte* hidden_at(std::int64_t row, std::int64_t neuron) const;
  void take_row(const TwellView& packed, std::int64_t row);
  void up(const GateBlock& gate, const void* prepared_x, std::int64_t first, float* accumulators,
          std::byte* panels) const;
  void down(std::int64_t rows, std::int64_t column, float* accumulators, std::byte* panels) const;

  static const void* row_of(ConstMatrixView matrix, std::int64_t row) {
    return static_cast<const std::byte*>(matrix.data) +
           static_cast<std::size_t>(row * matrix.row_stride) * size_of(matrix.dtype);
  }

  Context& context_;
  const FfnWeights& weights_;
  const Gemm& gemm_;
  const ChosenRows& chosen_;
  double share_;
  int hot_rows_;
  std::int64_t rows_;  // of a block, at most
  std::int64_t size_ = 0;
  std::int32_t* counts_ = nullptr;  // [H] rows of the block that fired it
  std::int32_t* list_ = nullptr;    // [H] hot neurons, ascending
  std::int32_t* place_ = nullptr;   // [H] in list_, or -1
  std::byte* hidden_ = nullptr;  // [rows, hidden_stride()] of the dtype of the GEMM's x: g, then h
  float* sums_ = nullptr;
};

}  // namespace twell
