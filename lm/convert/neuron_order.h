// An order of the neurons of feed-forward layers in which those that fire together lie together:
// their rows of up and down then share memory pages, and blocks of them are needed or not as a
// whole. Results are those of the old order up to the order of summation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "engine/score.h"

namespace twell::lm {

struct LayerOrder {
  std::vector<std::int64_t> neurons;  // old ids in new order, each at most once
  std::int64_t removed = 0;           // that are not in it: none of them can change any output
  std::int64_t silent = 0;            // at the end: never fired on the text, but might
  // Blocks of 16 neurons that fire for a token, mean over the text, in the old and the new order.
  double blocks_before = 0, blocks_after = 0;
};

// Neurons that contribute nothing whatever the (finite) input is: a gate row of zeros (with a bias,
// if any, that does not activate), an up row of zeros (likewise), or a down column of zeros. None
// where what down multiplies is normalised.
std::vector<std::int64_t> neurons_without_effect(const FfnParameters& parameters,
                                                 const ActivationChoice& activation);

// One order a layer, from what fires on `stream` (in sequences of default_window() tokens). A layer
// loses neurons without effect only as far as every layer can, because a checkpoint has one size
// for all; `remove` false keeps them all. The model needs its checkpoint weights and a dense path.
// Throws twell::Error for activations without zeros.
std::vector<LayerOrder> order_neurons(Model& model, std::span<const std::int64_t> stream,
                                      bool remove, const ScoreOptions& options = {});

// The model's parameters as they stand in the reordered checkpoint: copies of the feed-forward
// ones.
NamedTensors reordered(const Model& model, std::span<const LayerOrder> orders);

}  // namespace twell::lm
