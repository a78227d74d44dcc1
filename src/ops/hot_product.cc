// Up and down of the hot neurons: their rows are packed on the fly, for the GEMM of the gate.
#include <algorithm>

#include "ops/hot_neurons.h"

namespace twell {

void HotNeurons::multiply(const GateBlock& gate, const void* prepared_x, int thread) {
  auto* accumulators = static_cast<float*>(context_.scratch(thread, kAccumulators, 0));
  auto* panels = static_cast<std::byte*>(context_.scratch(thread, kHotPanels, 0));
  if (weights_.gated()) {
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t first = 0; first < size_; first += kUpNeurons) {
      up(gate, prepared_x, first, accumulators, panels);
    }
  }
#pragma omp for schedule(dynamic, 1)
  for (std::int64_t column = 0; column < weights_.down.cols; column += kColumnBlock) {
    down(gate.rows(), column, accumulators, panels);
  }
}

void HotNeurons::up(const GateBlock& gate, const void* prepared_x, std::int64_t first,
                    float* accumulators, std::byte* panels) const {
  const std::int64_t count = std::min(kUpNeurons, size_ - first);
  const DType dtype = weights_.gate.dtype;
  const std::size_t panel_bytes = packed_bytes(dtype, kPanel, weights_.up.cols);
  for (std::int64_t p = 0; p < packed_panels(count); ++p) {
    const void* rows[kPanel];
    for (std::int64_t j = 0; j < kPanel; ++j) {  // the last neuron again, where there is no other
      rows[j] = row_of(weights_.up, list_[first + std::min(p * kPanel + j, count - 1)]);
    }
    chosen_.pack_as_neurons(rows, weights_.up.cols,
                            panels + static_cast<std::size_t>(p) * panel_bytes);
  }
  GemmArgs args = gate.input.args(prepared_x, 0, gate.rows());
  args.weight = {panels, dtype, count, weights_.up.cols};
  args.panels = packed_panels(count);
  args.c = accumulators;
  gemm_.run(args);
  for (std::int64_t row = 0; row < gate.rows(); ++row) {
    chosen_.gate(accumulators + row * kColumnBlock, count, hidden_at(row, first));
  }
}

void HotNeurons::down(std::int64_t rows, std::int64_t column, float* accumulators,
                      std::byte* panels) const {
  const std::int64_t width = std::min(kColumnBlock, weights_.down.cols - column);
  const void* inputs[kDownDepth];
  for (std::int64_t first = 0; first < size_; first += kDownDepth) {
    const std::int64_t count = std::min(kDownDepth, size_ - first);
    for (std::int64_t i = 0; i < count; ++i) inputs[i] = row_of(weights_.down, list_[first + i]);
    chosen_.pack_as_inputs(inputs, count, column, width, panels);
    GemmArgs args;
    args.x = hidden_at(0, first);
    args.x_stride = hidden_stride();
    args.rows = rows;
    args.weight = {panels, weights_.down.dtype, width, count};
    args.panels = packed_panels(width);
    args.c = accumulators;
    args.accumulate = first > 0;
    gemm_.run(args);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(accumulators + row * kColumnBlock, width,
                sums_ + row * weights_.down.cols + column);
  }
}

}  // namespace twell
