// Plans around a library's GEMM: the block of rows that stays in L2, and the queue of the gather.
#include <algorithm>

#include "core/check.h"
#include "cuda_ops/library_gemm.h"
#include "cuda_ops/planning.h"
#include "kernels/cuda/shapes.h"

namespace twell::cuda {
namespace {

// Rows whose dense gate takes at most two fifths of L2, which the operands need too, in as many
// blocks of 128 × 256 outputs as fill all SMs equally: on an H100 with 5,632 neurons 1,536 rows are
// two full waves, and 17 MB in bf16.
std::int64_t block_rows(const Device& device, std::int64_t hidden, std::int64_t value_bytes) {
  constexpr std::int64_t kTileRows = 128;
  constexpr std::int64_t kTileCols = 256;
  constexpr double kShareOfL2 = 0.4;
  constexpr double kAsGood = 0.005;
  constexpr std::size_t kSmallL2 = std::size_t{32} << 20;  // where the driver does not tell
  const double room =
      kShareOfL2 * static_cast<double>(device.l2_bytes > 0 ? device.l2_bytes : kSmallL2);
  std::int64_t best = 1;
  double best_use = 0;
  for (std::int64_t tiles = 1;
       tiles == 1 || static_cast<double>(tiles * kTileRows * hidden * value_bytes) <= room;
       ++tiles) {
    const std::int64_t blocks = tiles * ceil_div(hidden, kTileCols);
    const auto places = static_cast<double>(ceil_div(blocks, device.sm_count) * device.sm_count);
    const double use = static_cast<double>(blocks) / places;
    if (use > best_use - kAsGood) {
      best = tiles;
      best_use = std::max(best_use, use);
    }
  }
  return best * kTileRows;
}

}  // namespace

GemmPlan plan_library_gemm(const Device& device, const Problem& problem, std::int32_t tile) {
  constexpr const char* kOperation = "cuda::plan_gemm_relu_twell";
  require(library_present(), kOperation, "shape",
          "library: libcublasLt.so is not to be found; install it, or take another shape");
  require(tile != 0 || problem.hidden <= kMostListed, kOperation, "tile",
          "expected one, since a row's list has room for 65536 neurons, got 0 for ",
          problem.hidden);
  GemmPlan plan;
  plan.shape = GemmShape::library;
  plan.dtype = problem.dtype;
  plan.aligned = problem.aligned;
  // Rounding comes before these activations, not after: relu alone commutes with it.
  plan.wide = problem.activation != Activation::relu;
  const std::int64_t value_bytes = plan.wide ? 4 : 2;
  plan.block_rows =
      static_cast<int>(std::clamp<std::int64_t>(block_rows(device, problem.hidden, value_bytes), 1,
                                                std::max<std::int64_t>(problem.tokens, 1)));
  plan.block_cols = static_cast<int>(problem.hidden);
  plan.threads = kPackThreads;
  plan.tile = tile == 0 ? static_cast<std::int32_t>(round_up(problem.hidden, 16)) : tile;
  plan.workspace_bytes = static_cast<std::size_t>(
      kLibraryWorkspace + plan.block_rows * round_up(problem.hidden, kVector) * value_bytes);
  return plan;
}

GatherPlan plan_gather_rows(const Device& device, const Problem& problem) {
  GatherPlan plan = plan_gather(device, problem);
  // What 128 registers a thread allow to be on an SM at a time.
  const int blocks_per_sm = kGatherBlocks * kGatherThreads / plan.threads;
  plan.splits = 1;
  plan.overlaps_gemm = false;
  plan.blocks = device.sm_count * blocks_per_sm;
  // If a token fires 1 % of its neurons, every block has one chunk, of 8 non-zeros at least.
  constexpr std::int64_t kLeastChunk = 8;
  const std::int64_t each = problem.tokens * problem.hidden / (100 * std::int64_t{plan.blocks});
  plan.chunk =
      static_cast<int>(std::clamp<std::int64_t>(round_up(each, kLeastChunk), kLeastChunk, kWindow));
  // Rows that share blocks are the exception where there are many; 2,048 sums of 2,048 columns are
  // 16 MB.
  constexpr std::int64_t kMostPartials = 2048;
  const std::int64_t of_a_row =
      std::max<std::int64_t>(kMostChunks, ceil_div(problem.hidden, kWindow));
  plan.partials = static_cast<int>(std::min(problem.tokens * of_a_row, kMostPartials));
  return plan;
}

}  // namespace twell::cuda
