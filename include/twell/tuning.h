// The measured figures that decide: one row for each instruction tier. There are no others
// elsewhere. docs/adding-a-kernel.md says how to find them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "twell/device.h"

#pragma GCC visibility push(default)
namespace twell {

// What a call of a gated bf16 layer costs, in nanoseconds for each of the H · D weights of its
// gate: dense by tokens, sparse by tokens and density (non-zeros / H).
struct FfnCostTable {
  static constexpr std::array<std::int64_t, 4> kTokens = {1, 8, 64, 512};
  static constexpr std::array<double, 8> kDensities = {0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1};
  std::array<double, kTokens.size()> dense;
  std::array<std::array<double, kDensities.size()>, kTokens.size()> sparse;
};

// The figures of a tier.
struct TierTuning {
  CpuTier tier;
  // If this share of a block's rows fire a neuron, it costs as much multiplied densely as gathered.
  double hot_share;
  // A screen that leaves at most this share of the pre-activations is less work than the packed
  // gate. 0: a screen never pays.
  double screen_limit;
  // A block of rows uses this share of L2 for memory that it reads and writes again and again, and
  // has at most `block_rows` rows.
  double block_l2_share;
  std::int64_t block_rows;
  // GEMMs of whole weights take as many of a block's rows at a time as fit, with their x and sums,
  // into this share of L2, besides the panels of a column block. 0: all rows.
  double gemm_l2_share;
  // Many rows gather up and down in pieces of so many columns, so that the pieces of all active
  // neurons stay in L2 for all rows. 0: whole neurons, row by row. Pieces need weights whose rows
  // are an odd number of cache lines apart (spread_stride), because rows 4 KB apart would share a
  // few sets of the caches.
  std::int64_t gather_columns;
  FfnCostTable cost;
};
// The figures of this tier.
const TierTuning& tuning_of(CpuTier tier);

// The stride, in elements of `bytes` bytes, of a matrix of `cols` columns whose rows lie an odd
// number of cache lines apart. Then the same columns of many rows do not share a few sets of a
// cache.
constexpr std::int64_t spread_stride(std::int64_t cols, std::size_t bytes) {
  const auto line = static_cast<std::int64_t>(64 / bytes);
  return ((cols + line - 1) / line | 1) * line;
}

// Packing a hot neuron's rows of up and down costs about as much as gathering them for this many
// tokens, on every tier that was measured.
inline constexpr int kHotPackingRows = 6;

}  // namespace twell
#pragma GCC visibility pop
