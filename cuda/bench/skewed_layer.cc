#include "cuda/bench/skewed_layer.h"

#include <algorithm>
#include <cmath>

#include "synth/popularity.h"
#include "twell/dtype.h"

namespace twell::bench {
namespace {

// Standard deviation of a token's level in units of the gate's: exp of it is the lognormal spread
// of its count.
constexpr double kTokenSpread = 0.25;

// Fast enough for the 70 million numbers of a layer and its inputs: the sum of four 16-bit uniform
// numbers has the first moments of a normal one and no tail beyond 3.5, which no figure here needs.
class Normal {
 public:
  explicit Normal(unsigned seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  float operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    const std::uint64_t r = state_ * 0x2545f4914f6cdd1dULL;
    const auto sum =
        static_cast<float>((r & 0xffffU) + (r >> 16 & 0xffffU) + (r >> 32 & 0xffffU) + (r >> 48));
    // Mean 131,070; variance 4 · 65,536² / 12.
    return (sum - 131070.0F) * (1.0F / 37837.0F);
  }

 private:
  std::uint64_t state_;
};

std::vector<std::uint16_t> random_bits(std::int64_t rows, std::int64_t cols, float scale,
                                       unsigned seed) {
  Normal normal(seed);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows * cols));
  for (std::uint16_t& bits : out) bits = bf16(scale * normal()).bits;
  return out;
}

}  // namespace

SkewedLayer make_skewed_layer(std::int64_t tokens, std::int64_t width, std::int64_t neurons,
                              double nnz, unsigned seed) {
  SkewedLayer layer{tokens, width, neurons, {}, {}, {}, {}, {}};
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  layer.x = random_bits(tokens, width, 1.0F, seed);
  layer.gate = random_bits(neurons, width, scale, seed + 1);
  layer.up = random_bits(neurons, width, scale, seed + 2);
  layer.down = random_bits(neurons, width, 1.0F / std::sqrt(static_cast<float>(nnz)), seed + 3);
  // Input 0 is one: its weight is minus the neuron's threshold. Input 1 is the token's level. The
  // gate of the other inputs is normal with variance one.
  Normal level(seed + 4);
  for (std::int64_t r = 0; r < tokens; ++r) {
    layer.x[static_cast<std::size_t>(r * width)] = bf16(1.0F).bits;
    layer.x[static_cast<std::size_t>(r * width + 1)] =
        bf16(static_cast<float>(kTokenSpread) * level()).bits;
  }
  lm::ActivityShape shape;
  shape.mean_nnz = nnz;
  layer.rates = lm::neuron_popularity(neurons, shape, seed + 5);
  std::vector<double>& rate = layer.rates;
  for (double& one : rate) one = std::min(one, 1.0);
  std::sort(rate.rbegin(), rate.rend());
  const double spread = std::sqrt(1.0 + kTokenSpread * kTokenSpread);
  for (std::int64_t n = 0; n < neurons; ++n) {
    const double shift = lm::normal_quantile(rate[static_cast<std::size_t>(n)]) * spread;
    layer.gate[static_cast<std::size_t>(n * width)] = bf16(static_cast<float>(shift)).bits;
    layer.gate[static_cast<std::size_t>(n * width + 1)] = bf16(1.0F).bits;
  }
  return layer;
}

}  // namespace twell::bench
