#include "cuda/layer/neuron_popularity.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <utility>

#include "device/found_memory.h"

namespace twell::lm {

NeuronPopularity::NeuronPopularity(const FfnShape& shape, DeviceRuntime& runtime)
    : shape_(shape),
      runtime_(runtime),
      host_(runtime.host_buffer(2 * shape.neurons, at::kLong).view({2, shape.neurons})),
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
  inputs_ = tokens_;
  host_.copy_(at::stack({sums_, at::isfinite(down).all(1).to(at::kLong)}), /*non_blocking=*/true);
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
  const auto* const sums = host.const_data_ptr<std::int64_t>();
  order({sums, sums + shape_.neurons}, host[1], reorder);
  return true;
}

void NeuronPopularity::order_by(const LayerFindings& findings, const at::Tensor& down,
                                const std::function<void(const at::Tensor& order)>& reorder) {
  host_ = at::Tensor();
  device_ = down.device();
  // Counts of calls are not waited for any more.
  tokens_ = std::max(findings.inputs, kTokens);
  inputs_ = findings.inputs;
  order(findings.fired, at::isfinite(down).all(1).to(at::kLong).cpu(), reorder);
}

void NeuronPopularity::order(const std::vector<std::int64_t>& fired, const at::Tensor& finite,
                             const std::function<void(const at::Tensor& order)>& reorder) {
  const auto neurons = fired.size();
  const auto is_finite = std::make_unique<bool[]>(neurons);
  for (std::size_t n = 0; n < neurons; ++n) {
    is_finite[n] = finite.const_data_ptr<std::int64_t>()[n] != 0;
  }
  NeuronOrder order = order_of({inputs_, {}, fired, {}}, {is_finite.get(), neurons});
  const at::Tensor host =
      runtime_.host_buffer(2 * shape_.neurons, at::kLong).view({2, shape_.neurons});
  auto* const places = host.mutable_data_ptr<std::int64_t>() + neurons;
  std::copy(order.order.begin(), order.order.end(), host.mutable_data_ptr<std::int64_t>());
  for (std::size_t i = 0; i < neurons; ++i) {
    places[static_cast<std::size_t>(order.order[i])] = static_cast<std::int64_t>(i);
  }
  const bool done = found_memory([&] {
    const at::Tensor on_device = host.to(device_, /*non_blocking=*/true);
    reorder(on_device[0]);
    places_ = on_device[1];
  });
  if (done) order_ = std::move(order);
}

std::vector<std::int64_t> NeuronPopularity::by_model(
    const std::vector<std::int64_t>& counts) const {
  if (!ordered()) return counts;
  std::vector<std::int64_t> out(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    out[static_cast<std::size_t>(order_.order[i])] = counts[i];
  }
  return out;
}

HotChoice NeuronPopularity::hot(std::int64_t rows) const {
  if (!ordered() || rows == 0) return {};
  // The nearest power of two, by a factor.
  const auto size = static_cast<std::uint64_t>(rows);
  const int power = std::bit_width(size + size / 2) - 1;
  auto found = chosen_.find(power);
  if (found == chosen_.end()) {
    HotChoice hot = runtime_.choose_hot(shape_, std::int64_t{1} << power, order_.rates);
    hot.count = std::min(hot.count, order_.finite);
    found = chosen_.emplace(power, hot).first;
  }
  return found->second;
}

}  // namespace twell::lm
