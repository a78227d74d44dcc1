// How often neurons fire, with the shape that trained sparse models show: a Zipf law of popularity,
// neurons that never fire, and row counts that spread like a lognormal (paper, section on sparsity
// patterns). Without PyTorch, for benchmarks with and without it.
#pragma once

#include <cstdint>
#include <vector>

namespace twell::lm {

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

// Firing probability of each neuron, in random order; the sum is mean_nnz.
std::vector<double> neuron_popularity(std::int64_t neurons, const ActivityShape& shape,
                                      std::uint64_t seed);

// What to add to a row's pre-activations so that row counts follow the lognormal and their mean is
// mean_nnz: one value per token, in random order.
std::vector<double> row_shifts(std::int64_t tokens, const std::vector<double>& popularity,
                               const ActivityShape& shape, std::uint64_t seed);

// A seed of its own for each purpose.
std::uint64_t random_stream(std::uint64_t seed, std::uint64_t purpose);

}  // namespace twell::lm
