// Which neurons of a sparse layer on a GPU fire most: there the first ones are multiplied densely
// where many tokens fire them (hot neurons, twell/cuda.h), so that the layer orders its rows once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/device.h"
#include "twell/findings.h"

namespace twell::lm {

class NeuronPopularity {
 public:
  // Tokens after which the order is made. A neuron is worth multiplying from about 1 % of the
  // tokens on (cuda::choose_hot): ten firings of these. A wrong order costs time, never
  // correctness.
  static constexpr std::int64_t kTokens = kTokensToOrder;
  // Calls with fewer are not counted for their own sake.
  static constexpr std::int64_t kFewestRows = 32;

  // `runtime`: of the layer's device; outlives this.
  NeuronPopularity(const FfnShape& shape, DeviceRuntime& runtime);

  // Whether a call of so many rows is to be counted: before the order is made, outside recordings.
  bool wants(std::int64_t rows) const;
  // How many of `rows` rows fired each neuron, int64 [H] on the layer's device, and its down
  // [H, D]. Added up there. After kTokens rows the sums travel to the host behind the work, and
  // nothing waits for them. While a graph is recorded, and after those rows, passed over: false.
  bool saw(const at::Tensor& neuron_nnz, std::int64_t rows, const at::Tensor& down);

  // Once the sums have arrived, and no graph is being recorded: calls `reorder`, once, to bring the
  // rows of the weights into this order: int64 [H] on the device, the model's numbers of the
  // neurons, those that fire most first, those whose row of down is not finite last. Where
  // `reorder` finds no memory for that, the neurons stay as they are for good. True once: from then
  // on no row moves any more.
  bool order_when_arrived(const std::function<void(const at::Tensor& order)>& reorder);
  // The same at once, by findings instead of counts.
  void order_by(const LayerFindings& findings, const at::Tensor& down,
                const std::function<void(const at::Tensor& order)>& reorder);
  bool ordered() const { return !order_.order.empty(); }
  // That were counted, or that the order is by.
  std::int64_t tokens() const { return inputs_ > 0 ? inputs_ : tokens_; }

  // The new places of the model's neurons, int64 [H] on the device; undefined while not ordered.
  const at::Tensor& places() const { return places_; }
  // Counts in the new order -> by the model's numbers; as they are while not ordered.
  std::vector<std::int64_t> by_model(const std::vector<std::int64_t>& counts) const;
  // For a call of so many rows, which are rounded to a power of two: none while not ordered. Never
  // neurons whose row of down is not finite, since 0 · ∞ would reach tokens that did not fire them.
  HotChoice hot(std::int64_t rows) const;

 private:
  void order(const std::vector<std::int64_t>& fired, const at::Tensor& finite,
             const std::function<void(const at::Tensor& order)>& reorder);

  FfnShape shape_;
  DeviceRuntime& runtime_;
  at::Tensor sums_;  // int64 [H] on the device
  at::Tensor host_;  // int64 [2, H]: the sums, and whether rows of down are finite
  std::unique_ptr<Marker> marker_;
  at::Device device_ = at::kCPU;
  std::int64_t tokens_ = 0;  // counted, or as good as
  std::int64_t inputs_ = 0;  // that the order is by
  at::Tensor places_;
  NeuronOrder order_;
  mutable std::map<int, HotChoice> chosen_;
};

}  // namespace twell::lm
