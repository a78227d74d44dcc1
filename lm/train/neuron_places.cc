#include "train/neuron_places.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace twell::lm {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<std::int64_t> inverse_of(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> out(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    out[index(order[i])] = static_cast<std::int64_t>(i);
  return out;
}

}  // namespace

NeuronPlaces::NeuronPlaces(const FfnShape& shape, std::int64_t layers, DeviceRuntime& runtime)
    : shape_(shape), runtime_(&runtime), layers_(index(layers)) {
  for (Layer& layer : layers_) {
    layer.order.resize(index(shape.neurons));
    std::iota(layer.order.begin(), layer.order.end(), 0);
  }
}

std::vector<std::int64_t> NeuronPlaces::by_model(std::int64_t layer,
                                                 const std::vector<std::int64_t>& counts) const {
  std::vector<std::int64_t> out(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) out[index(at(layer).order[i])] = counts[i];
  return out;
}

std::vector<std::int64_t> NeuronPlaces::of(std::int64_t layer,
                                           const std::vector<std::int64_t>& neurons) const {
  const std::vector<std::int64_t> all = inverse_of(at(layer).order);
  std::vector<std::int64_t> out;
  for (const std::int64_t neuron : neurons) out.push_back(all[index(neuron)]);
  return out;
}

at::Tensor NeuronPlaces::to_model(std::int64_t layer) const {
  return at::tensor(inverse_of(at(layer).order), at::kLong);
}

at::Tensor NeuronPlaces::from_model(std::int64_t layer) const {
  return at::tensor(at(layer).order, at::kLong);
}

void NeuronPlaces::saw(std::int64_t layer, std::int64_t rows,
                       std::span<const std::int64_t> neuron_nnz) {
  Layer& seen = layers_[index(layer)];
  seen.counts.resize(neuron_nnz.size());
  for (std::size_t i = 0; i < neuron_nnz.size(); ++i) seen.counts[i] += neuron_nnz[i];
  seen.rows += rows;
}

void NeuronPlaces::decide(
    std::int64_t rows,
    const std::function<void(std::int64_t layer, const at::Tensor& permutation)>& reorder) {
  for (std::int64_t number = 0; number < std::ssize(layers_); ++number) {
    Layer& layer = layers_[index(number)];
    const std::vector<std::int64_t> counts = std::exchange(layer.counts, {});
    const std::int64_t seen = std::exchange(layer.rows, 0);
    if (seen == 0) continue;
    // Of places that fire equally often, those that lie first stay so.
    std::vector<std::int64_t> permutation(layer.order.size());
    std::iota(permutation.begin(), permutation.end(), 0);
    const auto fired = [&](std::int64_t place) { return counts[index(layer.order[index(place)])]; };
    std::ranges::stable_sort(permutation, std::ranges::greater(), fired);
    std::vector<double> rates;
    for (const std::int64_t place : permutation) {
      rates.push_back(static_cast<double>(fired(place)) / static_cast<double>(seen));
    }
    layer.choice = runtime_->choose_training(shape_, rows, rates);
    if (!layer.choice.sparse || std::ranges::is_sorted(permutation)) continue;
    reorder(number, at::tensor(permutation, at::kLong));
    std::vector<std::int64_t> order;
    for (const std::int64_t place : permutation) order.push_back(layer.order[index(place)]);
    layer.order = std::move(order);
  }
}

at::Tensor NeuronPlaces::orders() const {
  std::vector<at::Tensor> all;
  for (std::int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    all.push_back(from_model(layer));
  }
  return at::stack(all);
}

std::vector<TrainingChoice> NeuronPlaces::choices() const {
  std::vector<TrainingChoice> out;
  for (const Layer& layer : layers_) out.push_back(layer.choice);
  return out;
}

std::optional<NeuronPlaces> NeuronPlaces::restored(
    std::span<const std::int64_t> orders, const std::vector<TrainingChoice>& choices) const {
  NeuronPlaces out(shape_, std::ssize(layers_), *runtime_);
  if (orders.empty() && choices.empty()) return out;
  const std::size_t neurons = index(shape_.neurons);
  if (orders.size() != layers_.size() * neurons || choices.size() != layers_.size()) return {};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = out.layers_[i];
    const auto order = orders.subspan(i * neurons, neurons);
    std::vector<std::int64_t> sorted(order.begin(), order.end());
    std::ranges::sort(sorted);
    if (sorted != layer.order || choices[i].hot < 0 || choices[i].hot > shape_.neurons) return {};
    layer.choice = choices[i];
    layer.order.assign(order.begin(), order.end());
  }
  return out;
}

}  // namespace twell::lm
