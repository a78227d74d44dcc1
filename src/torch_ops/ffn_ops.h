// The whole feed-forward layer in one call; implemented here for CPU tensors and in
// cuda/torch/ for a GPU's.
//
// x is [..., D], y [..., columns of down]. The gate (in a layer without one, up) is what
// pack_weight makes of [H, D]; with a screen, that matrix as stored, and `screen` what
// screen_weight makes of it. up and down are [H, D], down neuron-major. The first `hot` neurons are
// fired by so many rows that a GPU had better multiply them densely (cuda::choose_hot), and their
// rows of down are finite; a CPU counts for itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "torch_ops/form_arguments.h"

namespace twell::torch_ops {

Tensor ffn(const Tensor& x, const OptionalTensors& weights, const std::optional<Tensor>& screen,
           const std::string& form, std::int64_t hot);

// Also the non-zeros of each row (int32, x's shape without its last dimension), the number of rows
// that fired each neuron (int64 [H]), and the pre-activations that the screen did not rule out
// (int64 []; 0 without one).
using FfnStats = std::tuple<Tensor, Tensor, Tensor, Tensor>;
FfnStats ffn_stats(const Tensor& x, const OptionalTensors& weights,
                   const std::optional<Tensor>& screen, const std::string& form, std::int64_t hot);

}  // namespace twell::torch_ops
