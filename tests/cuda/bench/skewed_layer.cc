#include "tests/cuda/bench/skewed_layer.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "twell/dtype.h"

namespace twell::bench {
namespace {

// Share of dead neurons, exponent of the popularity of the others, and the standard deviation of a
// token's level in units of the gate's: exp of it is the lognormal spread of its count.
constexpr double kDead = 0.3;
constexpr double kZipf = 0.8;
constexpr double kTokenSpread = 0.25;
// Popular neurons fire for at most every other token.
constexpr double kMostPopular = 0.5;

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

// z with P(normal > z) = p, by bisection.
double upper_quantile(double p) {
  double low = -8.0;
  double high = 8.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > p ? low : high) = middle;
  }
  return low;
}

// Firing rates of the neurons, in random places, that sum to nnz.
std::vector<double> popularity(std::int64_t hidden, double nnz, unsigned seed) {
  std::vector<double> rate(static_cast<std::size_t>(hidden), 0.0);
  const auto alive = static_cast<std::size_t>(std::ceil(static_cast<double>(hidden) * (1 - kDead)));
  const auto total = [&](double scale) {
    double sum = 0.0;
    for (std::size_t i = 0; i < alive; ++i) {
      rate[i] = std::min(scale * std::pow(static_cast<double>(i + 1), -kZipf), kMostPopular);
      sum += rate[i];
    }
    return sum;
  };
  double low = 0.0;
  double high = static_cast<double>(hidden);
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (total(middle) < nnz ? low : high) = middle;
  }
  std::shuffle(rate.begin(), rate.end(), std::mt19937(seed));
  return rate;
}

}  // namespace

SkewedLayer make_skewed_layer(std::int64_t tokens, std::int64_t depth, std::int64_t hidden,
                              double nnz, unsigned seed) {
  SkewedLayer layer{tokens, depth, hidden, {}, {}, {}, {}};
  const float scale = 1.0F / std::sqrt(static_cast<float>(depth));
  layer.x = random_bits(tokens, depth, 1.0F, seed);
  layer.gate = random_bits(hidden, depth, scale, seed + 1);
  layer.up = random_bits(hidden, depth, scale, seed + 2);
  layer.down = random_bits(hidden, depth, 1.0F / std::sqrt(static_cast<float>(nnz)), seed + 3);
  // Input 0 is one: its weight is minus the neuron's threshold. Input 1 is the token's level. The
  // gate of the other inputs is normal with variance one.
  Normal level(seed + 4);
  for (std::int64_t r = 0; r < tokens; ++r) {
    layer.x[static_cast<std::size_t>(r * depth)] = bf16(1.0F).bits;
    layer.x[static_cast<std::size_t>(r * depth + 1)] =
        bf16(static_cast<float>(kTokenSpread) * level()).bits;
  }
  const std::vector<double> rate = popularity(hidden, nnz, seed + 5);
  const double spread = std::sqrt(1.0 + kTokenSpread * kTokenSpread);
  for (std::int64_t n = 0; n < hidden; ++n) {
    const double p = rate[static_cast<std::size_t>(n)];
    const double threshold = p > 0 ? upper_quantile(p) * spread : 100.0;
    layer.gate[static_cast<std::size_t>(n * depth)] = bf16(static_cast<float>(-threshold)).bits;
    layer.gate[static_cast<std::size_t>(n * depth + 1)] = bf16(1.0F).bits;
  }
  return layer;
}

}  // namespace twell::bench
