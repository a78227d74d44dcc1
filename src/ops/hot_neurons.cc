#include "ops/hot_neurons.h"

#include <algorithm>

namespace twell {
namespace {

template <class T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T);
}

}  // namespace

HotNeurons::HotNeurons(Context& context, const FfnPlan& plan, const FfnWeights& weights,
                       std::int64_t rows)
    : context_(context),
      weights_(weights),
      gemm_(gemm_kernel(plan.tier, weights.gate.dtype)),
      chosen_(chosen_rows_kernel(plan.tier, weights.gate.dtype)),
      share_(plan.hot_share),
      hot_rows_(plan.hot_rows),
      rows_(rows) {
  const std::int64_t hidden = weights.gate.rows;
  const std::int64_t width = weights.down.cols;
  counts_ =
      static_cast<std::int32_t*>(context.scratch(0, kHotLists, 3 * bytes_of<std::int32_t>(hidden)));
  list_ = counts_ + hidden;
  place_ = list_ + hidden;
  if (share_ > 1.0) return;
  hidden_ = static_cast<std::byte*>(context.scratch(
      0, kHotHidden,
      static_cast<std::size_t>(rows * gemm_.x.stride(packed_depth(DType::bf16, hidden), rows)) *
          size_of(gemm_.x.dtype)));
  sums_ = static_cast<float*>(context.scratch(0, kHotSums, bytes_of<float>(rows * width)));
  const DType dtype = weights.gate.dtype;
  const std::size_t panels = std::max(packed_bytes(dtype, kUpNeurons, weights.gate.cols),
                                      packed_bytes(dtype, kColumnBlock, kDownDepth));
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kHotPanels, panels);
}

void HotNeurons::count(const GateBlock& gate, FfnStats* stats, std::int64_t first_row) {
  const TwellView& packed = gate.out;
  const std::int64_t rows = gate.rows();
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
    const double least = share_ * static_cast<double>(rows) + hot_rows_;
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

std::int64_t HotNeurons::hidden_stride() const {
  return gemm_.x.stride(packed_depth(DType::bf16, size_), rows_);
}

std::byte* HotNeurons::hidden_at(std::int64_t row, std::int64_t neuron) const {
  return hidden_ +
         static_cast<std::size_t>(row * hidden_stride() + neuron) * size_of(gemm_.x.dtype);
}

void HotNeurons::take_row(const TwellView& packed, std::int64_t row) {
  std::byte* hidden = hidden_at(row, 0);
  std::fill_n(hidden, static_cast<std::size_t>(hidden_stride()) * size_of(gemm_.x.dtype),
              std::byte{});
  const auto store = [&](std::int32_t neuron, float value) {
    const std::int32_t place = place_[neuron];
    if (place < 0) return false;
    if (gemm_.x.dtype == DType::f32) {
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
  for (std::int64_t row = 0; row < gate.rows(); ++row) take_row(gate.out, row);
}

}  // namespace twell
