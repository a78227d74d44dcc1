// What was measured and is decided by: one row for each instruction tier, nothing of the kind
// stands elsewhere. docs/adding-a-kernel.md says how the figures are found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "twell/device.h"

namespace twell {

// Nanoseconds of one call, for each of the H · D weights of a gate, of a gated bf16 layer: dense by
// tokens, sparse by tokens and density (non-zeros / H).
struct FfnCostTable {
  static constexpr std::array<std::int64_t, 4> kTokens = {1, 8, 64, 512};
  static constexpr std::array<double, 8> kDensities = {0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1};
  std::array<double, kTokens.size()> dense;
  std::array<std::array<double, kDensities.size()>, kTokens.size()> sparse;
};

struct TierTuning {
  CpuTier tier;
  // A neuron that this share of a block's rows fires costs as much multiplied densely as gathered.
  double hot_share;
  // Share of the pre-activations up to which what a screen leaves is less work than the packed
  // gate; 0: a screen never pays.
  double screen_limit;
  // A block of rows: so much of L2 for what it reads and writes again and again, and so many rows
  // at most.
  double block_l2_share;
  std::int64_t block_rows;
  // GEMMs of whole weights take so many of a block's rows at a time as leave their x and sums in
  // this share of L2, beside the panels of a column block. 0: all of them.
  double gemm_l2_share;
  // Where rows are many, up and down are gathered in pieces of so many columns, so that those of
  // all active neurons stay in L2 while the rows go by. 0: a row's neurons from end to end. Pieces
  // want weights whose rows lie an odd number of cache lines apart (spread_stride): 4 KB apart, the
  // pieces would share a few sets of the caches.
  std::int64_t gather_columns;
  FfnCostTable cost;
};
const TierTuning& tuning_of(CpuTier tier);

// Elements, of so many bytes, from row to row of a matrix of `cols` columns whose rows lie an odd
// number of cache lines apart, so that the same columns of many rows do not share a few sets of a
// cache.
constexpr std::int64_t spread_stride(std::int64_t cols, std::size_t bytes) {
  const auto line = static_cast<std::int64_t>(64 / bytes);
  return ((cols + line - 1) / line | 1) * line;
}

// Packing a hot neuron's rows of up and down costs about as much as gathering them for so many
// tokens, on every tier measured.
inline constexpr int kHotPackingRows = 6;

}  // namespace twell
