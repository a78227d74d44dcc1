#include "ops/hot_neurons.h"

#include <algorithm>

namespace twell {
namespace {

constexpr std::int64_t kUpNeurons = 128;  // of one unit of work: 8 panels, 512 KB at D = 2048
// Neurons of one pass over the columns of a unit. Not 512: the panels would lie 16 KB apart, all in
// the same sets of L1.
constexpr std::int64_t kDownDepth = 480;
// Packing a neuron's rows costs about as much as gathering them for this many tokens.
constexpr double kPackingTokens = 3.0;

template <class T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T);
}

const void* row_of(ConstMatrixView matrix, std::int64_t row) {
  return static_cast<const std::byte*>(matrix.data) +
         static_cast<std::size_t>(row * matrix.row_stride) * size_of(matrix.dtype);
}

}  // namespace

HotNeurons::HotNeurons(Context& context, const FfnPlan& plan, const FfnWeights& weights,
                       std::int64_t rows)
    : context_(context),
      weights_(weights),
      gemm_(gemm_kernel(plan.tier, weights.gate.dtype)),
      chosen_(chosen_rows_kernel(plan.tier, weights.gate.dtype)),
      share_(plan.hot_share) {
  const std::int64_t hidden = weights.gate.rows;
  const std::int64_t width = weights.down.cols;
  counts_ =
      static_cast<std::int32_t*>(context.scratch(0, kHotLists, 3 * bytes_of<std::int32_t>(hidden)));
  list_ = counts_ + hidden;
  place_ = list_ + hidden;
  if (share_ > 1.0) return;
  hidden_ = static_cast<std::byte*>(context.scratch(
      0, kHotHidden,
      static_cast<std::size_t>(rows * packed_depth(DType::bf16, hidden)) * size_of(gemm_.x_dtype)));
  sums_ = static_cast<float*>(context.scratch(0, kHotSums, bytes_of<float>(rows * width)));
  const DType dtype = weights.gate.dtype;
  const std::size_t panels = std::max(packed_bytes(dtype, kUpNeurons, weights.gate.cols),
                                      packed_bytes(dtype, kColumnBlock, kDownDepth));
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kHotPanels, panels);
}

void HotNeurons::count(const GateBlock& gate, FfnStats* stats, std::int64_t first_row) {
  const TwellView& packed = gate.out;
  const std::int64_t rows = gate.x.rows;
#pragma omp for schedule(static, 1)
  for (std::int64_t t = 0; t < packed.tiles; ++t) {
    const std::int64_t first = t * packed.tile;
    std::fill(counts_ + first, counts_ + std::min(first + packed.tile, weights_.gate.rows), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      packed.for_each_slot(row, t, [&](std::int32_t neuron) { ++counts_[neuron]; });
    }
  }
#pragma omp single
  {
    if (stats != nullptr) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t n = packed.row_count(row);
        stats->nnz += n;
        stats->max_row_nnz = std::max(stats->max_row_nnz, n);
        if (stats->row_nnz != nullptr) {
          stats->row_nnz[first_row + row] = static_cast<std::int32_t>(n);
        }
      }
      if (stats->neuron_counts != nullptr) {
        for (std::int64_t n = 0; n < weights_.gate.rows; ++n) stats->neuron_counts[n] += counts_[n];
      }
    }
    size_ = 0;
    const double least = share_ * static_cast<double>(rows) + kPackingTokens;
    for (std::int64_t n = 0; n < weights_.gate.rows; ++n) {
      if (counts_[n] >= least) list_[size_++] = static_cast<std::int32_t>(n);
    }
  }
  choose();
}

// From the candidates in list_.
void HotNeurons::choose() {
  constexpr std::int32_t kOut = -1;
  // A row of down that is not finite would make NaN of zeros of the dense product.
#pragma omp for schedule(static)
  for (std::int64_t i = 0; i < size_; ++i) {
    if (!chosen_.finite(row_of(weights_.down, list_[i]), weights_.down.cols)) list_[i] = kOut;
  }
#pragma omp single
  {
    const auto* end = std::remove(list_, list_ + size_, kOut);
    size_ = end - list_;
    if (size_ < kPanel) size_ = 0;
    if (size_ > 0) std::fill_n(place_, weights_.gate.rows, kOut);
    for (std::int64_t i = 0; i < size_; ++i) place_[list_[i]] = static_cast<std::int32_t>(i);
  }
}

std::int64_t HotNeurons::hidden_stride() const { return packed_depth(DType::bf16, size_); }

std::byte* HotNeurons::hidden_at(std::int64_t row, std::int64_t neuron) const {
  return hidden_ +
         static_cast<std::size_t>(row * hidden_stride() + neuron) * size_of(gemm_.x_dtype);
}

void HotNeurons::take_row(const TwellView& packed, std::int64_t row) {
  std::byte* hidden = hidden_at(row, 0);
  std::fill_n(hidden, static_cast<std::size_t>(hidden_stride()) * size_of(gemm_.x_dtype),
              std::byte{});
  const auto store = [&](std::int32_t neuron, float value) {
    const std::int32_t place = place_[neuron];
    if (place < 0) return false;
    if (gemm_.x_dtype == DType::f32) {
      reinterpret_cast<float*>(hidden)[place] = value;
    } else {
      reinterpret_cast<bf16*>(hidden)[place] = bf16(value);
    }
    return true;
  };
  for (std::int64_t t = 0; t < packed.tiles; ++t) packed.remove_slots_if(row, t, store);
}

void HotNeurons::take(const GateBlock& gate) {
#pragma omp for schedule(static)
  for (std::int64_t row = 0; row < gate.x.rows; ++row) take_row(gate.out, row);
}

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
    down(gate.x.rows, column, accumulators, panels);
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
  GemmArgs args = x_of(gate, prepared_x);
  args.weight = {panels, dtype, count, weights_.up.cols};
  args.panels = packed_panels(count);
  args.c = accumulators;
  gemm_.run(args);
  for (std::int64_t row = 0; row < gate.x.rows; ++row) {
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
