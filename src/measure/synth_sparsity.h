// Giving a random model a chosen sparsity: gate rows are shifted along the direction that all
// inputs of their layer share, layer by layer, each on what the layers before it really compute.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "decoder/model.h"
#include "measure/synthetic.h"

namespace twell::measure {

// Adds one constant direction to all embeddings, so that every normalised input has a share of it,
// and varies how large that share is from token to token, so that row counts vary as in
// ActivityShape. The direction also moves all logits alike, which changes no probability.
void share_direction(lm::Model& model, std::uint64_t seed);

// Sets the gate rows (of a non-gated model: up rows) of all layers so that the mean non-zeros on
// `tokens` [B, S] are those of `shape`. The model is one of make_model, with a relu. `on_layer` is
// told (layer, measured mean on these tokens).
void calibrate_sparsity(lm::Model& model, const at::Tensor& tokens, const ActivityShape& shape,
                        std::uint64_t seed,
                        const std::function<void(std::int64_t, double)>& on_layer);

}  // namespace twell::measure
