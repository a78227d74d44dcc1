// Layers and inputs with the activity of popularity.h, for measuring.
//
// The construction: all inputs share a direction d, a gate row is random noise plus a multiple of
// d, and the multiple decides how often the neuron fires. With x·w = noise + shift and the noise
// normal, a neuron of popularity p gets the shift Φ⁻¹(p).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "synth/popularity.h"
#include "twell/ffn_form.h"

namespace twell::lm {

// One layer and its inputs, for measuring. `dtype` is a floating type.
// Vectors are of the weights' dtype, and undefined where there are none.
struct SyntheticLayer : FormVectors<at::Tensor> {
  at::Tensor gate;    // [H, D]; of a non-gated layer the up projection
  at::Tensor up;      // [H, D]; undefined in a non-gated layer
  at::Tensor down;    // [D, H] as in checkpoints
  at::Tensor down_t;  // [H, D] neuron-major

  // f(tensor) of all that there are.
  template <class F>
  SyntheticLayer map(const F& f) const {
    const auto some = [&](const at::Tensor& t) { return t.defined() ? f(t) : t; };
    SyntheticLayer out = {{}, some(gate), some(up), some(down), some(down_t)};
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) out[i] = some((*this)[i]);
    return out;
  }
};
struct SyntheticShape {
  std::int64_t width = 2048;    // D
  std::int64_t neurons = 5632;  // H
  bool gated = true;
  bool biases = false;
  at::ScalarType dtype = at::kBFloat16;
  ActivityShape activity;
  // Of the activation: the pre-activation has to exceed it (fat_relu), else 0.
  double threshold = 0.0;
};
SyntheticLayer synthetic_layer(const SyntheticShape& shape, std::uint64_t seed);
// Inputs [tokens, D] that make any synthetic_layer() of this shape and seed fire as asked.
at::Tensor synthetic_inputs(const SyntheticShape& shape, std::int64_t tokens, std::uint64_t seed);
// Batches of `tokens` that a benchmark rotates over: the same few tokens again and again would find
// their neurons in caches.
std::int64_t input_batches(std::int64_t tokens);

}  // namespace twell::lm
