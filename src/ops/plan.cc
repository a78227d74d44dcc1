#include "ops/plan.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/kernel.h"
#include "ops/validate.h"
#include "twell/tuning.h"

namespace twell {

std::int64_t row_block(CpuTier tier, std::int64_t rows) {
  // 256 inputs of a row in bf16, and its part of a column block of accumulators: what stays in L2
  // with the panels that stream through. Every weight is read, and every hot neuron packed, once a
  // block: against 192 rows, 512 save 7 % of the time at M = 512.
  constexpr std::int64_t kRowBytes = kColumnBlock * 4 + 512;
  constexpr std::int64_t kMultiple = 32;  // of the AMX kernel's steps
  const TierTuning& tuning = tuning_of(tier);
  const auto room = static_cast<std::int64_t>(static_cast<double>(cpu_caches().l2) *
                                              tuning.block_l2_share / kRowBytes);
  const std::int64_t most =
      std::clamp<std::int64_t>(room, 128, tuning.block_rows) / kMultiple * kMultiple;
  if (rows <= most) return std::max<std::int64_t>(rows, 1);
  const std::int64_t blocks = (rows + most - 1) / most;
  return ((rows + blocks - 1) / blocks + kMultiple - 1) / kMultiple * kMultiple;
}

std::int64_t gemm_rows(CpuTier tier, std::int64_t rows, std::int64_t width) {
  const double share = tuning_of(tier).gemm_l2_share;
  if (share == 0) return rows;
  constexpr std::int64_t kLeast = 128, kMultiple = 32;
  const std::int64_t row = 2 * width;  // bytes, in bf16
  const auto room = static_cast<std::int64_t>(share * static_cast<double>(cpu_caches().l2));
  const std::int64_t fitting = (room - kColumnBlock * row) / (row + kSumStride * 4);
  return std::min(rows, std::max(fitting / kMultiple * kMultiple, kLeast));
}

int sparse_parts(std::int64_t rows, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(4L * threads / rows, 1, threads));
}

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows that are worth a unit of their own: the weights are read once for each group.
constexpr std::int64_t kLeastRows = 32;

// As few tiles as there are threads, so that a row's list stays in one piece per thread: the
// widest step of columns with which nine tenths of the threads' time are used. Kernels take four
// panels at a time, which few rows, whose weights come from memory, do not notice.
std::int64_t tile_columns(int threads, std::int64_t neurons, std::int64_t rows) {
  const std::int64_t share = ceil_div(neurons, threads);
  const std::int64_t least = rows < kLeastRows ? kPanel : 4 * kPanel;
  for (std::int64_t step = kColumnBlock;; step /= 2) {
    const std::int64_t tile = ceil_div(share, step) * step;
    if (step == least || 10 * neurons >= 9 * threads * tile) return tile;
  }
}

// Groups of at most so many rows, and more of them where that leaves threads less idle by a
// twentieth.
int row_groups(int threads, std::int64_t tiles, std::int64_t rows, std::int64_t most) {
  const auto time = [&](std::int64_t groups) {  // of the thread with most units
    return ceil_div(tiles * groups, threads) * ceil_div(rows, groups);
  };
  std::int64_t best = ceil_div(rows, most);
  for (std::int64_t groups = best + 1; groups * kLeastRows <= rows; ++groups) {
    if (20 * time(groups) < 19 * time(best)) best = groups;
  }
  return static_cast<int>(best);
}

}  // namespace

FfnPlan plan_ffn(const Context& context, std::int64_t tokens, const FfnShape& shape,
                 GateForm gate) {
  require_dtype("plan_ffn", "shape", shape.dtype);
  require_weight_shape("plan_ffn", "shape", weight_type(shape.dtype), shape.neurons, shape.width);
  FfnPlan plan;
  plan.tier = context.tier();
  plan.threads = context.threads();
  plan.gate = gate;
  plan.row_block = row_block(plan.tier, tokens);
  const std::int64_t tile = tile_columns(plan.threads, shape.neurons, plan.row_block);
  plan.tile = static_cast<std::int32_t>(std::min<std::int64_t>(tile, kWidestTile));
  plan.row_groups = row_groups(plan.threads, ceil_div(shape.neurons, plan.tile), plan.row_block,
                               gemm_rows(plan.tier, plan.row_block, shape.width));
  plan.row_parts = sparse_parts(plan.row_block, plan.threads);
  // Where a row is split among threads, gathering is all there is to do.
  if (plan.row_parts > 1) return plan;
  // Measured with AMX: fewer rows do not use a piece often enough.
  constexpr std::int64_t kPiecesFrom = 256;
  if (plan.row_block >= kPiecesFrom) plan.gather_columns = tuning_of(plan.tier).gather_columns;
  plan.hot_share = context.hot_share().value_or(tuning_of(plan.tier).hot_share);
  // What is forced is forced for few rows too.
  plan.hot_rows = context.hot_share() ? 1 : kHotPackingRows;
  return plan;
}

const char* name_of(GateForm form) { return form == GateForm::packed ? "packed" : "screened"; }

std::string FfnPlan::to_string() const {
  return concat(name_of(gate), " gate on ", name_of(tier), ", ", threads,
                threads == 1 ? " thread" : " threads", ", blocks of ", row_block,
                row_block == 1 ? " row" : " rows", ", tiles of ", tile, " neurons",
                row_groups > 1 ? concat(" x ", row_groups, " groups of rows") : "",
                row_parts > 1     ? concat(", each row gathered in ", row_parts, " parts")
                : hot_share > 1.0 ? std::string(", rows gathered")
                                  : concat(", neurons of ", 100 * hot_share, " % of the rows and ",
                                           hot_rows, " more multiplied densely, the rest gathered"),
                gather_columns > 0 ? concat(" in pieces of ", gather_columns, " columns") : "");
}

}  // namespace twell
