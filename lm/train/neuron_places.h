// Training on a GPU: which layers multiply only what fires, with how many hot neurons
// (twell/cuda_train.h), and where neurons lie for that. Hot neurons are the first ones, so that the
// trainer brings a layer's rows into the order of how often they fire; files, logs and dead neurons
// have the model's own order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "twell/ffn.h"

namespace twell::lm {

class NeuronPlaces {
 public:
  // `runtime`: of the model's device; outlives this. In the model's order, all layers dense.
  NeuronPlaces(const FfnShape& shape, std::int64_t layers, DeviceRuntime& runtime);

  const TrainingChoice& choice(std::int64_t layer) const { return at(layer).choice; }
  // Counts by place -> by the model's numbers.
  std::vector<std::int64_t> by_model(std::int64_t layer,
                                     const std::vector<std::int64_t>& counts) const;
  // Model's numbers of neurons -> their places.
  std::vector<std::int64_t> of(std::int64_t layer, const std::vector<std::int64_t>& neurons) const;
  // For rows of weights, int64 [H] on the CPU: row i of the model's order is row to_model()[i] of
  // those that train, and row i of these is row from_model()[i] of the model's.
  at::Tensor to_model(std::int64_t layer) const;
  at::Tensor from_model(std::int64_t layer) const;

  // A call of a step after which decide() comes: its rows, and how many of them fired each neuron,
  // by the model's numbers. Calls add up.
  void saw(std::int64_t layer, std::int64_t rows, std::span<const std::int64_t> neuron_nnz);
  // Takes the choice of every layer that was seen, by its own rates, for calls of so many rows, and
  // forgets them. Where it is sparse, its neurons get a new order: row i is to be the row
  // permutation[i] that was, and `reorder` brings all that belongs to neurons into it.
  void decide(
      std::int64_t rows,
      const std::function<void(std::int64_t layer, const at::Tensor& permutation)>& reorder);

  // As a checkpoint has it: the model's number of the neuron at each place, int64 [layers, H] on
  // the CPU, and the choice of each layer.
  at::Tensor orders() const;
  std::vector<TrainingChoice> choices() const;
  // The one that had these, of the same model; both empty: as it is made. None where a layer's
  // order does not have every neuron once, or a choice is not of such a layer.
  std::optional<NeuronPlaces> restored(std::span<const std::int64_t> orders,
                                       const std::vector<TrainingChoice>& choices) const;

 private:
  struct Layer {
    TrainingChoice choice;
    std::vector<std::int64_t> order;   // the model's number of the neuron at each place
    std::vector<std::int64_t> counts;  // by the model's numbers; empty: not seen
    std::int64_t rows = 0;
  };
  const Layer& at(std::int64_t layer) const { return layers_[static_cast<std::size_t>(layer)]; }

  FfnShape shape_;
  DeviceRuntime* runtime_;
  std::vector<Layer> layers_;
};

}  // namespace twell::lm
