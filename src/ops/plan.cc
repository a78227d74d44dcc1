#include <algorithm>

#include "ops/gemm_input.h"
#include "ops/sparse_rows.h"
#include "ops/validate.h"

namespace twell {
namespace {

// A dense product with a neuron's rows costs this share of gathering them for one token: 19 of 170
// ns with AVX-512, measured on a core of a Zen 5 at D = 2048; the others from the ratio of their
// GEMM to it.
double hot_share_of(CpuTier tier) {
  switch (tier) {
    case CpuTier::amx:
      return 0.05;
    case CpuTier::avx512:
      return 0.11;
    case CpuTier::avx2:
      return 0.4;
    case CpuTier::portable:
      return 0.5;
  }
  return 2.0;
}

// Packing a neuron's rows costs about as much as gathering them for this many tokens.
constexpr int kPackingTokens = 6;

}  // namespace

FfnPlan plan_ffn(const Context& context, std::int64_t tokens, const FfnWeights& weights) {
  constexpr std::int64_t kWidestTile = 65536;  // 16-bit columns
  require_weight_shape("plan_ffn", "weights.gate", weights.gate);
  FfnPlan plan;
  plan.tier = context.tier();
  plan.threads = context.threads();
  plan.row_block = row_block(tokens);
  plan.layout.rows = plan.row_block;
  plan.layout.cols = weights.gate.rows;
  plan.layout.dtype = weights.gate.dtype;
  // As few tiles as there are threads: a row's list stays in one piece per thread. With more
  // threads than tiles of 256 columns, the threads share out the rows of a tile too.
  const std::int64_t share = (weights.gate.rows + plan.threads - 1) / plan.threads;
  const std::int64_t tile = (share + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
  plan.layout.tile = static_cast<std::int32_t>(std::min(tile, kWidestTile));
  plan.layout.capacity = plan.layout.tile;
  plan.row_splits =
      static_cast<int>((plan.threads + plan.layout.tiles() - 1) / plan.layout.tiles());
  // Where a row is split among threads, gathering is all there is to do.
  if (sparse_parts(plan.row_block, plan.threads) > 1) return plan;
  plan.hot_share = context.hot_share().value_or(hot_share_of(plan.tier));
  // What is forced is forced for few rows too.
  plan.hot_rows = context.hot_share() ? 1 : kPackingTokens;
  return plan;
}

std::string FfnPlan::to_string() const {
  return concat("row gather on ", name_of(tier), ", ", threads,
                threads == 1 ? " thread" : " threads", ", blocks of ", row_block,
                " rows, gate tiles of ", layout.tile, " columns",
                row_splits > 1 ? concat(" x ", row_splits, " row groups") : "");
}

}  // namespace twell
