// Synthetic activity with the shape that trained sparse models show: a Zipf law of neuron
// popularity, neurons that never fire, and row counts that spread like a lognormal (paper,
// section on sparsity patterns).
//
// The construction: all inputs share a direction d, a gate row is random noise plus a multiple of
// d, and the multiple decides how often the neuron fires. With x·w = noise + shift and the noise
// normal, a neuron of popularity p gets the shift Φ⁻¹(p).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twell::cli {

struct ActivityShape {
  double mean_nnz = 29;        // of a token, 0 … H
  double dead_fraction = 0.3;  // fewer where mean_nnz leaves no room for them
  double zipf_exponent = 1.0;
  double row_sigma = 0.5;  // of the logarithm of a row's count
};

// Φ⁻¹ on (0, 1), within ±kCertain outside and near the ends.
inline constexpr double kCertain = 40.0;  // standard deviations: never crossed
double normal_quantile(double p);
double normal_cdf(double x);

// Firing probability of each of `hidden` neurons, in random order; the sum is mean_nnz.
std::vector<double> neuron_popularity(std::int64_t hidden, const ActivityShape& shape,
                                      std::uint64_t seed);

// What to add to a row's pre-activations so that row counts follow the lognormal and their mean is
// mean_nnz: one value per token, in random order.
std::vector<double> row_shifts(std::int64_t tokens, const std::vector<double>& popularity,
                               const ActivityShape& shape, std::uint64_t seed);

// One layer and its inputs, for measuring. `dtype` is a floating type.
struct SyntheticLayer {
  at::Tensor gate;    // [H, D]; of a non-gated layer the up projection
  at::Tensor up;      // [H, D]; undefined in a non-gated layer
  at::Tensor down;    // [D, H] as in checkpoints
  at::Tensor down_t;  // [H, D] neuron-major
};
struct SyntheticShape {
  std::int64_t input = 2048;   // D
  std::int64_t hidden = 5632;  // H
  bool gated = true;
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

}  // namespace twell::cli
