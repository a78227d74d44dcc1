// A layer of small integers, whose result does not depend on the order of any sum: what a kernel
// computes is right to the bit or wrong, at any size.
//
// x has a few entries of ±1 a row, gate and up are −1, 0 or 1, down −3 … 3. Bounds of an ordinary
// row, with kExactTerms = 12 entries:
//   gate   −t_n + Σ of 12 terms, t_n ≥ −4 the neuron's threshold:  g ≤ 16
//   u      Σ of 13 terms:                                        |u| ≤ 13
//   h      g u:                                                  |h| ≤ 208
// One row fires every neuron: its level adds 20 to a gate, and it has 6 entries, so that
//   g ≥ 20 − 13 − 6 = 1,   g ≤ 20 + 4 + 6 = 30,   |u| ≤ 7,       |h| ≤ 210.
// So g and h, which kernels round, are integers up to 256: bf16 holds them, whether h is rounded or
// not. A sum for y stays below 210 · 3 · H, 2²² for 5,632 neurons: f32 holds it and every part of
// it, and so do tensor cores, which may drop what is 2²³ below the largest operand. y alone is
// rounded, once, from a value that is exact: partial sums that were rounded on the way show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/bench/skewed_layer.h"

namespace twell::bench {

inline constexpr std::int64_t kExactTokens = 300;  // two blocks of 128 rows, and 44
inline constexpr std::int64_t kExactTerms = 12;
inline constexpr std::int64_t kExtremeTerms = 6;  // of the two rows below
inline constexpr std::int64_t kFullRow = 5;       // fires every neuron
inline constexpr std::int64_t kEmptyRow = 6;      // fires none
inline constexpr int kExactLevel = 20;
inline constexpr int kLeastThreshold = -4;
inline constexpr int kDeadThreshold = static_cast<int>(kExactTerms) + 1;
inline constexpr int kExactDown = 3;

// The largest |h| of any row.
constexpr int exact_hidden_bound() {
  const int terms = static_cast<int>(kExactTerms);
  const int few = static_cast<int>(kExtremeTerms);
  const int ordinary = (terms - kLeastThreshold) * (terms + 1);
  const int full = (kExactLevel - kLeastThreshold + few) * (few + 1);
  return ordinary > full ? ordinary : full;
}
static_assert(exact_hidden_bound() <= 256, "every integer of bf16's eight bits");
static_assert(kExactLevel - kDeadThreshold - kExtremeTerms >= 1, "the full row fires all");
static_assert(-kExactLevel - kLeastThreshold + kExtremeTerms < 0, "the empty row fires none");
// Of Σ |h d| over all neurons.
constexpr std::int64_t exact_sum_bound(std::int64_t neurons) {
  return neurons * exact_hidden_bound() * kExactDown;
}
static_assert(exact_sum_bound(5632) < std::int64_t{1} << 22);

struct ExactLayer {
  SkewedLayer layer;
  // What it must give: y [tokens, width] in bf16 bits, and the neurons that each row fires.
  std::vector<std::uint16_t> y;
  std::vector<std::vector<std::int32_t>> active;
};

// About `nnz` active neurons a token, as skewed in popularity as those of make_skewed_layer().
// Throws where the bounds above do not hold for so many neurons, or the columns do not suffice.
ExactLayer make_exact_layer(std::int64_t tokens, std::int64_t width, std::int64_t neurons,
                            double nnz, unsigned seed);

// The counts of `tokens` rows from `first` on, as DeviceStats has them.
struct ExactCounts {
  std::vector<std::int32_t> row_nnz;
  std::vector<std::int64_t> neurons;
};
ExactCounts exact_counts(const ExactLayer& exact, std::int64_t first, std::int64_t tokens);

// Bits that differ between `got` [tokens, width] and the layer's y from row `first` on.
struct BitDifference {
  std::int64_t count = 0;
  std::int64_t row = 0, column = 0;  // of the first
  float got = 0, expected = 0;       // there
};
BitDifference differing_bits(const ExactLayer& exact, const std::vector<std::uint16_t>& got,
                             std::int64_t first, std::int64_t tokens);

}  // namespace twell::bench
