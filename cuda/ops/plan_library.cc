// Plans around a library's GEMM: the block of rows that stays in L2, and the queue of the gather.
#include <algorithm>

#include "core/check.h"
#include "cuda/kernels/shapes.h"
#include "cuda/ops/library_gemm.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

// Outputs that a block of a large GEMM computes.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileCols = 256;

std::int64_t tiles_of(std::int64_t rows, std::int64_t cols) {
  return ceil_div(rows, kTileRows) * ceil_div(cols, kTileCols);
}

// Tiles that an SM computes one after another.
std::int64_t waves(const Device& device, std::int64_t tokens, std::int64_t rows,
                   std::int64_t cols) {
  return tokens / rows * ceil_div(tiles_of(rows, cols), device.sm_count) +
         ceil_div(tiles_of(tokens % rows, cols), device.sm_count);
}

// Rows of a block whose output stays in L2: fewest waves in all, then fewest blocks. On an H100
// with 5,632 neurons 1,536 rows are two full waves, and 17 MB in bf16. Where L2 has no room for the
// tiles of one wave, memory has.
std::int64_t block_rows(const Device& device, std::int64_t tokens, std::int64_t cols,
                        std::int64_t value_bytes, double share) {
  std::int64_t best = 0;
  std::int64_t fewest = 0;
  for (std::int64_t rows = kTileRows;; rows += kTileRows) {
    if (best != 0 && !stays_in_l2(device, rows, cols, value_bytes, share) &&
        tiles_of(rows, cols) > device.sm_count) {
      return best;
    }
    if (rows >= tokens) rows = std::max<std::int64_t>(tokens, 1);
    const std::int64_t now = waves(device, tokens, rows, cols);
    if (best == 0 || now < fewest ||
        (now == fewest && ceil_div(tokens, rows) < ceil_div(tokens, best))) {
      best = rows;
      fewest = now;
    }
    if (rows >= tokens) return best;
  }
}

}  // namespace

bool stays_in_l2(const Device& device, std::int64_t rows, std::int64_t cols,
                 std::int64_t value_bytes, double share) {
  constexpr std::size_t kSmallL2 = std::size_t{32} << 20;  // where the driver does not tell
  return static_cast<double>(rows * cols * value_bytes) <=
         share * static_cast<double>(device.l2_bytes > 0 ? device.l2_bytes : kSmallL2);
}

double loss_of_blocks(const Device& device, std::int64_t tokens, std::int64_t rows,
                      std::int64_t cols) {
  return static_cast<double>(waves(device, tokens, rows, cols) * device.sm_count * kTileRows *
                             kTileCols) /
         static_cast<double>(tokens * cols);
}

std::int64_t rows_at_a_time(const Device& device, const Problem& problem, std::int64_t hot) {
  return hot == 0 || hot == problem.neurons
             ? problem.tokens
             : block_rows(device, problem.tokens, problem.width, sizeof(float), kSumsShare);
}

GemmPlan plan_library_gemm(const Device& device, const Problem& problem, std::int32_t tile,
                           std::int64_t joined) {
  constexpr const char* kOperation = "cuda::plan_gemm_relu_twell";
  require(library_present(), kOperation, "shape",
          "library: libcublasLt.so is not to be found, or this build lacks its header; install "
          "them, or take another shape");
  require(tile != 0 || problem.neurons <= kMostListed, kOperation, "tile",
          "expected one, since a row's list has room for ", kMostListed, " neurons, got 0 for ",
          problem.neurons);
  GemmPlan plan;
  plan.shape = GemmShape::library;
  plan.dtype = problem.dtype;
  plan.aligned = problem.aligned;
  // Rounding comes before these activations, not after: relu alone commutes with it.
  plan.wide = problem.activation != Activation::relu;
  const std::int64_t value_bytes = plan.wide ? 4 : 2;
  const std::int64_t cols = problem.neurons + joined;
  plan.block_rows =
      static_cast<int>(block_rows(device, problem.tokens, cols, value_bytes, kOutputShare));
  plan.block_cols = static_cast<int>(cols);
  plan.threads = kPackThreads;
  plan.tile = tile == 0 ? static_cast<std::int32_t>(round_up(problem.neurons, 16)) : tile;
  plan.workspace_bytes = static_cast<std::size_t>(
      kLibraryWorkspace + plan.block_rows * round_up(cols, kVector) * value_bytes);
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
  const std::int64_t each = problem.tokens * problem.neurons / (100 * std::int64_t{plan.blocks});
  plan.chunk =
      static_cast<int>(std::clamp<std::int64_t>(round_up(each, kLeastChunk), kLeastChunk, kWindow));
  // Rows that share blocks are the exception where there are many; 2,048 sums of 2,048 columns are
  // 16 MB.
  constexpr std::int64_t kMostPartials = 2048;
  const std::int64_t of_a_row =
      std::max<std::int64_t>(kMostChunks, ceil_div(problem.neurons, kWindow));
  plan.partials = static_cast<int>(std::min(problem.tokens * of_a_row, kMostPartials));
  return plan;
}

}  // namespace twell::cuda
