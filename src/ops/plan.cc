#include <algorithm>

#include "core/check.h"
#include "twell/ffn.h"

namespace twell {

// Blocks of 192 rows: 256 inputs of them (96 KiB in bf16) and a column block of their accumulators
// (196 KiB) share an L2 of 1 to 2 MiB with the panels that stream through.
FfnPlan plan_ffn(const Context& context, std::int64_t tokens, const FfnWeights& weights) {
  constexpr std::int64_t kRowBlock = 192;
  constexpr std::int64_t kColumns = 256;
  constexpr std::int64_t kWidestTile = 65536;  // 16-bit columns
  FfnPlan plan;
  plan.tier = context.tier();
  plan.threads = context.threads();
  plan.row_block = std::clamp<std::int64_t>(tokens, 1, kRowBlock);
  plan.layout.rows = plan.row_block;
  plan.layout.cols = weights.gate.rows;
  plan.layout.dtype = weights.gate.dtype;
  // As few tiles as there are threads: a row's list stays in one piece per thread. With more
  // threads than tiles of 256 columns, the threads share out the rows of a tile too.
  const std::int64_t share = (weights.gate.rows + plan.threads - 1) / plan.threads;
  const std::int64_t tile = (share + kColumns - 1) / kColumns * kColumns;
  plan.layout.tile = static_cast<std::int32_t>(std::min(tile, kWidestTile));
  plan.layout.capacity = plan.layout.tile;
  plan.row_splits =
      static_cast<int>((plan.threads + plan.layout.tiles() - 1) / plan.layout.tiles());
  return plan;
}

std::string FfnPlan::to_string() const {
  return concat("row gather on ", name_of(tier), ", ", threads,
                threads == 1 ? " thread" : " threads", ", blocks of ", row_block,
                " rows, gate tiles of ", layout.tile, " columns",
                row_splits > 1 ? concat(" x ", row_splits, " row groups") : "");
}

}  // namespace twell
