#include "ops/hot_neurons.h"

#include <algorithm>

#include "ops/scratch.h"

namespace twell {
namespace {

template <class T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T);
}

}  // namespace

HotNeurons::HotNeurons(Context& context, const FfnPlan& plan, const FfnWeights& weights)
    : context_(context),
      plan_(plan),
      up_(weights.up),
      down_(weights.down),
      kernels_(kernels_of(plan.tier, weights.down.dtype)) {
  const std::int64_t hidden = down_.rows;
  counts_ =
      static_cast<std::int32_t*>(context.scratch(0, kHotLists, 3 * bytes_of<std::int32_t>(hidden)));
  list_ = counts_ + hidden;
  place_ = list_ + hidden;
  if (plan.hot_share > 1.0) return;
  const std::int64_t stride = kernels_.x.stride(packed_depth(DType::bf16, hidden), plan.row_block);
  hidden_ = static_cast<std::byte*>(context.scratch(
      0, kHotHidden,
      static_cast<std::size_t>(plan.row_block * stride) * size_of(kernels_.x.dtype)));
  sums_ = static_cast<float*>(
      context.scratch(0, kHotSums, bytes_of<float>(plan.row_block * down_.cols)));
  const std::size_t panels = std::max(packed_bytes(down_.dtype, kUpNeurons, weights.shape().width),
                                      packed_bytes(down_.dtype, kColumnBlock, kDownDepth));
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kHotPanels, panels);
}

void HotNeurons::count(const Gate& gate) {
  const TwellView& packed = gate.out();
  const std::int64_t rows = gate.rows();
#pragma omp for schedule(static, 1)
  for (std::int64_t t = 0; t < packed.tiles; ++t) {
    const std::int64_t first = t * packed.tile;
    std::fill(counts_ + first, counts_ + std::min(first + packed.tile, down_.rows), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      packed.for_each_slot(row, t, [&](std::int32_t neuron) { ++counts_[neuron]; });
    }
  }
#pragma omp single
  {
    size_ = 0;
    const double least = plan_.hot_share * static_cast<double>(rows) + plan_.hot_rows;
    for (std::int64_t n = 0; n < down_.rows; ++n) {
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
    if (!kernels_.all_finite(down_.row_bytes(list_[i]), down_.cols)) list_[i] = kOut;
  }
#pragma omp single
  {
    const auto* end = std::remove(list_, list_ + size_, kOut);
    size_ = end - list_;
    if (size_ < kPanel) size_ = 0;
    if (size_ > 0) std::fill_n(place_, down_.rows, kOut);
    for (std::int64_t i = 0; i < size_; ++i) place_[list_[i]] = static_cast<std::int32_t>(i);
  }
}

std::int64_t HotNeurons::hidden_stride() const {
  return kernels_.x.stride(packed_depth(DType::bf16, size_), plan_.row_block);
}

std::byte* HotNeurons::hidden_at(std::int64_t row, std::int64_t neuron) const {
  return hidden_ +
         static_cast<std::size_t>(row * hidden_stride() + neuron) * size_of(kernels_.x.dtype);
}

void HotNeurons::take_row(const TwellView& packed, std::int64_t row) {
  std::byte* hidden = hidden_at(row, 0);
  std::fill_n(hidden, static_cast<std::size_t>(hidden_stride()) * size_of(kernels_.x.dtype),
              std::byte{});
  const auto store = [&](std::int32_t neuron, float value) {
    const std::int32_t place = place_[neuron];
    if (place < 0) return false;
    if (kernels_.x.dtype == DType::f32) {
      reinterpret_cast<float*>(hidden)[place] = value;
    } else {
      reinterpret_cast<bf16*>(hidden)[place] = bf16(value);
    }
    return true;
  };
  for (std::int64_t t = 0; t < packed.tiles; ++t) packed.remove_slots_if(row, t, store);
}

void HotNeurons::take(const Gate& gate) {
#pragma omp for schedule(static)
  for (std::int64_t row = 0; row < gate.rows(); ++row) take_row(gate.out(), row);
}

}  // namespace twell
