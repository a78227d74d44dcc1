// A layer whose activity looks like that of a trained one (synth/popularity.h), without PyTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace twell::bench {

struct SkewedLayer {
  std::int64_t tokens = 0, width = 0, neurons = 0;
  // bf16 bits, row-major: x [tokens, width]; gate, up, down [neurons, width].
  std::vector<std::uint16_t> x, gate, up, down;
  // Share of tokens that fires each neuron, about; the highest first, as neurons are ordered when a
  // model is loaded.
  std::vector<double> rates;
};

// About `nnz` active neurons a token under relu. The same seed gives the same layer.
SkewedLayer make_skewed_layer(std::int64_t tokens, std::int64_t width, std::int64_t neurons,
                              double nnz, unsigned seed);

}  // namespace twell::bench
