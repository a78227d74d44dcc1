// Giving a random model a chosen sparsity: gate rows are shifted along the direction that all
// inputs of their layer share, layer by layer, each on what the layers before it really compute.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "synth/synthetic.h"

namespace twell::lm {

// Adds one constant direction to all embeddings, so that every normalised input has a share of it,
// and varies how large that share is from token to token, so that row counts vary as in
// ActivityShape. The direction also moves all logits alike, which changes no probability.
void share_direction(Model& model, std::uint64_t seed);

// Mean non-zeros of each layer of a trained model as the paper describes it: the first two of 28
// layers are the least active, and a peak follows in the early-middle ones. It prints no numbers,
// so that the heights are chosen here: a third of the mean at first, twice the mean at a quarter of
// the depth, two thirds at the end. Their mean is `mean_nnz`.
std::vector<double> nnz_of_layers(std::int64_t layers, double mean_nnz);

// Sets the gate rows (of a non-gated model: up rows) of all layers so that the mean non-zeros on
// `tokens` [B, S] are `nnz`, one number a layer. The model is one of make_model, with a relu.
// `on_layer` is told (layer, measured mean on these tokens).
void calibrate_sparsity(Model& model, const at::Tensor& tokens, std::span<const double> nnz,
                        std::uint64_t seed,
                        const std::function<void(std::int64_t, double)>& on_layer);

}  // namespace twell::lm
