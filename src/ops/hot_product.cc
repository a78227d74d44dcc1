// Up and down of the hot neurons: their rows are packed on the fly, for the GEMM of the gate.
#include <algorithm>

#include "ops/hot_neurons.h"
#include "ops/scratch.h"

namespace twell {

void HotNeurons::multiply(const Gate& gate, int thread) {
  auto* accumulators = static_cast<float*>(context_.scratch(thread, kAccumulators, 0));
  auto* panels = static_cast<std::byte*>(context_.scratch(thread, kHotPanels, 0));
  if (up_) {
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t first = 0; first < size_; first += kUpNeurons) {
      up(gate, first, accumulators, panels);
    }
  }
#pragma omp for schedule(dynamic, 1)
  for (std::int64_t column = 0; column < down_.cols; column += kColumnBlock) {
    down(gate.rows(), column, accumulators, panels);
  }
}

void HotNeurons::up(const Gate& gate, std::int64_t first, float* accumulators,
                    std::byte* panels) const {
  const std::int64_t count = std::min(kUpNeurons, size_ - first);
  const std::size_t panel_bytes = packed_bytes(down_.dtype, kPanel, up_->cols);
  for (std::int64_t p = 0; p < packed_panels(count); ++p) {
    const void* rows[kPanel];
    for (std::int64_t j = 0; j < kPanel; ++j) {  // the last neuron again, where there is no other
      rows[j] = up_->row_bytes(list_[first + std::min(p * kPanel + j, count - 1)]);
    }
    kernels_.pack_neurons(rows, up_->cols, panels + static_cast<std::size_t>(p) * panel_bytes);
  }
  GemmArgs args = gate.gemm_args({panels, down_.dtype, count, up_->cols});
  args.panels = packed_panels(count);
  args.c = accumulators;
  kernels_.gemm(args);
  for (std::int64_t row = 0; row < gate.rows(); ++row) {
    kernels_.multiply_nonzeros(accumulators + row * kColumnBlock, count, hidden_at(row, first));
  }
}

void HotNeurons::down(std::int64_t rows, std::int64_t column, float* accumulators,
                      std::byte* panels) const {
  const std::int64_t width = std::min(kColumnBlock, down_.cols - column);
  const void* inputs[kDownDepth];
  for (std::int64_t first = 0; first < size_; first += kDownDepth) {
    const std::int64_t count = std::min(kDownDepth, size_ - first);
    for (std::int64_t i = 0; i < count; ++i) inputs[i] = down_.row_bytes(list_[first + i]);
    kernels_.pack_inputs(inputs, count, column, width, panels);
    GemmArgs args;
    args.x = hidden_at(0, first);
    args.x_stride = hidden_stride();
    args.rows = rows;
    args.weight = {panels, down_.dtype, width, count};
    args.panels = packed_panels(width);
    args.c = accumulators;
    args.accumulate = first > 0;
    kernels_.gemm(args);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(accumulators + row * kColumnBlock, width, sums_ + row * down_.cols + column);
  }
}

}  // namespace twell
