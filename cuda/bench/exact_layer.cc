#include "cuda/bench/exact_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "synth/popularity.h"
#include "twell/dtype.h"
#include "twell/status.h"

namespace twell::bench {
namespace {

constexpr std::int64_t kControls = 2;  // inputs that thresholds and levels use

std::uint16_t bits_of(int value) { return bf16(static_cast<float>(value)).bits; }
int integer_of(std::uint16_t bits) {
  return static_cast<int>(static_cast<float>(bf16::from_bits(bits)));
}

// Whole numbers of −most … most.
std::vector<std::uint16_t> random_integers(std::int64_t count, int most, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::uint16_t> bits;
  for (int value = -most; value <= most; ++value) bits.push_back(bits_of(value));
  std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
  for (std::uint16_t& one : out) one = bits[random() / 64 % bits.size()];
  return out;
}

// P(S > t) of the sum S of kExactTerms numbers that are −1, 0 or 1 alike, at t + kExactTerms.
std::array<double, 2 * kExactTerms + 1> tails() {
  constexpr int kSize = 2 * kExactTerms + 1;
  std::array<double, kSize> chance{};
  chance[kExactTerms] = 1.0;
  for (int term = 0; term < kExactTerms; ++term) {
    std::array<double, kSize> next{};
    for (int i = 0; i < kSize; ++i) {
      for (const int step : {-1, 0, 1}) {
        if (i + step < 0 || i + step >= kSize) continue;
        next.at(static_cast<std::size_t>(i + step)) += chance.at(static_cast<std::size_t>(i)) / 3;
      }
    }
    chance = next;
  }
  std::array<double, kSize> tail{};
  double above = 0.0;
  for (int i = kSize - 1; i >= 0; --i) {
    tail.at(static_cast<std::size_t>(i)) = above;
    above += chance.at(static_cast<std::size_t>(i));
  }
  return tail;
}

// The threshold whose chance of being passed is nearest to `rate`.
int threshold_for(double rate, const std::array<double, 2 * kExactTerms + 1>& tail) {
  if (rate <= 0) return kDeadThreshold;
  int best = kLeastThreshold;
  double least = 1e9;
  for (int t = kLeastThreshold; t < kExactTerms; ++t) {
    const double off =
        std::abs(std::log(tail.at(static_cast<std::size_t>(t + kExactTerms)) / rate));
    if (off < least) {
      least = off;
      best = t;
    }
  }
  return best;
}

// Entries of a row: every column in turn, in a random order, so that a few rows meet all.
void fill_inputs(SkewedLayer& layer, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> columns(static_cast<std::size_t>(layer.width - kControls));
  std::iota(columns.begin(), columns.end(), kControls);
  std::shuffle(columns.begin(), columns.end(), random);
  layer.x.assign(static_cast<std::size_t>(layer.tokens * layer.width), bits_of(0));
  std::size_t next = 0;
  for (std::int64_t r = 0; r < layer.tokens; ++r) {
    std::uint16_t* row = layer.x.data() + r * layer.width;
    row[0] = bits_of(1);
    row[1] = bits_of(r == kFullRow ? kExactLevel : r == kEmptyRow ? -kExactLevel : 0);
    const std::int64_t terms = r == kFullRow || r == kEmptyRow ? kExtremeTerms : kExactTerms;
    for (std::int64_t i = 0; i < terms; ++i) {
      row[columns[next]] = bits_of((random() & 1U) != 0 ? 1 : -1);
      next = (next + 1) % columns.size();
    }
  }
}

void fill_expected(ExactLayer& exact) {
  const SkewedLayer& layer = exact.layer;
  exact.y.resize(layer.x.size());
  exact.active.resize(static_cast<std::size_t>(layer.tokens));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t r = 0; r < layer.tokens; ++r) {
    std::vector<std::pair<std::int64_t, int>> inputs;
    for (std::int64_t k = 0; k < layer.width; ++k) {
      const int x = integer_of(layer.x[static_cast<std::size_t>(r * layer.width + k)]);
      if (x != 0) inputs.emplace_back(k, x);
    }
    const auto dot = [&](const std::vector<std::uint16_t>& weight, std::int64_t n) {
      int sum = 0;
      for (const auto& [k, x] : inputs) {
        sum += x * integer_of(weight[static_cast<std::size_t>(n * layer.width + k)]);
      }
      return sum;
    };
    std::vector<int> y(static_cast<std::size_t>(layer.width));
    for (std::int64_t n = 0; n < layer.neurons; ++n) {
      const int g = dot(layer.gate, n);
      if (g <= 0) continue;
      exact.active[static_cast<std::size_t>(r)].push_back(static_cast<std::int32_t>(n));
      const int h = g * dot(layer.up, n);
      const std::uint16_t* down = layer.down.data() + n * layer.width;
      for (std::size_t c = 0; c < y.size(); ++c) y[c] += h * integer_of(down[c]);
    }
    for (std::size_t c = 0; c < y.size(); ++c) {
      exact.y[static_cast<std::size_t>(r * layer.width) + c] = bits_of(y[c]);
    }
  }
}

}  // namespace

ExactLayer make_exact_layer(std::int64_t tokens, std::int64_t width, std::int64_t neurons,
                            double nnz, unsigned seed) {
  if (exact_sum_bound(neurons) >= std::int64_t{1} << 23) {
    throw Error(ErrorKind::invalid_argument, "make_exact_layer",
                "sums over so many neurons could be inexact");
  }
  if (width < kControls + kExactTerms) {
    throw Error(ErrorKind::invalid_argument, "make_exact_layer", "expected 14 inputs or more");
  }
  ExactLayer exact;
  SkewedLayer& layer = exact.layer;
  layer = {tokens, width, neurons, {}, {}, {}, {}, {}};
  fill_inputs(layer, seed);
  layer.gate = random_integers(neurons * width, 1, seed + 1);
  layer.up = random_integers(neurons * width, 1, seed + 2);
  layer.down = random_integers(neurons * width, kExactDown, seed + 3);
  lm::ActivityShape shape;
  shape.mean_nnz = nnz;
  const std::vector<double> rate = lm::neuron_popularity(neurons, shape, seed + 4);
  const auto tail = tails();
  for (std::int64_t n = 0; n < neurons; ++n) {
    const auto row = static_cast<std::size_t>(n * width);
    layer.gate[row] = bits_of(-threshold_for(rate[static_cast<std::size_t>(n)], tail));
    layer.gate[row + 1] = bits_of(1);
    layer.up[row + 1] = bits_of(0);
  }
  fill_expected(exact);
  return exact;
}

ExactCounts exact_counts(const ExactLayer& exact, std::int64_t first, std::int64_t tokens) {
  ExactCounts out;
  out.neurons.resize(static_cast<std::size_t>(exact.layer.neurons));
  for (std::int64_t r = first; r < first + tokens; ++r) {
    const std::vector<std::int32_t>& active = exact.active[static_cast<std::size_t>(r)];
    out.row_nnz.push_back(static_cast<std::int32_t>(active.size()));
    for (const std::int32_t n : active) out.neurons[static_cast<std::size_t>(n)] += 1;
  }
  return out;
}

BitDifference differing_bits(const ExactLayer& exact, const std::vector<std::uint16_t>& got,
                             std::int64_t first, std::int64_t tokens) {
  const std::int64_t width = exact.layer.width;
  BitDifference out;
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    const std::uint16_t expected = exact.y[static_cast<std::size_t>(first * width + i)];
    const std::uint16_t actual = got[static_cast<std::size_t>(i)];
    if (actual == expected) continue;
    if (out.count == 0) {
      out.row = first + i / width;
      out.column = i % width;
      out.got = static_cast<float>(bf16::from_bits(actual));
      out.expected = static_cast<float>(bf16::from_bits(expected));
    }
    out.count += 1;
  }
  return out;
}

}  // namespace twell::bench
