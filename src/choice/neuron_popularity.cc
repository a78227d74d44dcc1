#include "choice/neuron_popularity.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <utility>

#include "choice/found_memory.h"

namespace twell::lm {

NeuronPopularity::NeuronPopularity(const FfnShape& shape, DeviceRuntime& runtime)
    : shape_(shape),
      runtime_(runtime),
      host_(runtime.host_buffer(3 * shape.hidden, at::kLong).view({3, shape.hidden})),
      marker_(runtime.make_marker()) {}

bool NeuronPopularity::wants(std::int64_t rows) const {
  return tokens_ < kTokens && rows >= kFewestRows && !runtime_.capturing();
}

bool NeuronPopularity::saw(const at::Tensor& neuron_nnz, std::int64_t rows,
                           const at::Tensor& down) {
  if (rows == 0 || tokens_ >= kTokens || runtime_.capturing()) return false;
  // A new tensor: one of inference mode must not be changed outside of it.
  sums_ = sums_.defined() ? sums_ + neuron_nnz : neuron_nnz;
  tokens_ += rows;
  if (tokens_ < kTokens) return true;
  // -1 marks what must not be hot.
  host_[0].copy_(at::where(at::isfinite(down).all(1), sums_, -1), /*non_blocking=*/true);
  marker_->set();
  device_ = std::exchange(sums_, {}).device();
  return true;
}

bool NeuronPopularity::order_when_arrived(
    const std::function<void(const at::Tensor& order)>& reorder) {
  // Asking an event is not allowed while a graph is recorded.
  if (!host_.defined() || tokens_ < kTokens || runtime_.capturing() || !marker_->reached()) {
    return false;
  }
  const at::Tensor host = std::exchange(host_, {});
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  auto* const all = host.mutable_data_ptr<std::int64_t>();
  const std::span counts(all, hidden), order(all + hidden, hidden),
      places(all + 2 * hidden, hidden);
  std::iota(order.begin(), order.end(), 0);
  const auto count = [&](std::int64_t neuron) { return counts[static_cast<std::size_t>(neuron)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return count(a) > count(b); });
  for (std::size_t i = 0; i < hidden; ++i) {
    places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  const bool done = found_memory([&] {
    const at::Tensor on_device = host.to(device_, /*non_blocking=*/true);
    reorder(on_device[1]);
    places_ = on_device[2];
  });
  if (!done) return true;
  for (const std::int64_t neuron : order) {
    finite_ += static_cast<std::int64_t>(count(neuron) >= 0);
    rates_.push_back(static_cast<double>(std::max<std::int64_t>(count(neuron), 0)) /
                     static_cast<double>(tokens_));
  }
  order_.assign(order.begin(), order.end());
  return true;
}

std::vector<std::int64_t> NeuronPopularity::by_model(
    const std::vector<std::int64_t>& counts) const {
  if (!ordered()) return counts;
  std::vector<std::int64_t> out(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    out[static_cast<std::size_t>(order_[i])] = counts[i];
  }
  return out;
}

HotNeurons NeuronPopularity::hot(std::int64_t rows) const {
  if (!ordered() || rows == 0) return {};
  // The nearest power of two, by a factor.
  const auto size = static_cast<std::uint64_t>(rows);
  const int power = std::bit_width(size + size / 2) - 1;
  auto found = chosen_.find(power);
  if (found == chosen_.end()) {
    HotNeurons hot = runtime_.choose_hot(shape_, std::int64_t{1} << power, rates_);
    hot.count = std::min(hot.count, finite_);
    found = chosen_.emplace(power, hot).first;
  }
  return found->second;
}

}  // namespace twell::lm
