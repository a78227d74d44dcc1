// The whole feed-forward layer on CPU tensors, in one call.
//
// x is [..., D]; up and down are [H, D] (down neuron-major); the packed weight comes from
// pack_weight of a [H, D] matrix. y has x's shape. The _stats variants also return the non-zeros of
// each row (int32, x's shape without its last dimension) and, for each neuron, the number of rows
// that fired it (int64 [H]).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

Tensor gated_ffn(const Tensor& x, const Tensor& gate_packed, const Tensor& up, const Tensor& down,
                 const std::string& activation, double threshold);

std::tuple<Tensor, Tensor, Tensor> gated_ffn_stats(const Tensor& x, const Tensor& gate_packed,
                                                   const Tensor& up, const Tensor& down,
                                                   const std::string& activation, double threshold);

Tensor ffn(const Tensor& x, const Tensor& up_packed, const Tensor& down,
           const std::string& activation, double threshold);

std::tuple<Tensor, Tensor, Tensor> ffn_stats(const Tensor& x, const Tensor& up_packed,
                                             const Tensor& down, const std::string& activation,
                                             double threshold);

// Gated or not, with the gate's (or up's) rows as stored and what screen_weight makes of them. The
// candidates (int64 []) are the pre-activations that the screen did not rule out.
Tensor screened_ffn(const Tensor& x, const Tensor& gate, const Tensor& screen,
                    const std::optional<Tensor>& up, const Tensor& down,
                    const std::string& activation, double threshold);

std::tuple<Tensor, Tensor, Tensor, Tensor> screened_ffn_stats(
    const Tensor& x, const Tensor& gate, const Tensor& screen, const std::optional<Tensor>& up,
    const Tensor& down, const std::string& activation, double threshold);

}  // namespace twell::torch_ops
