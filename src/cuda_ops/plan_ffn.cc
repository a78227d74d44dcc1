// Plans of the gather and of the whole layer. Pure functions of the device's figures and the
// problem.
#include <algorithm>

#include "core/check.h"
#include "cuda_ops/planning.h"
#include "kernels/cuda/shapes.h"

namespace twell::cuda {

void check_problem(const char* operation, const Problem& problem) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto in_range = [&](const char* name, std::int64_t value, std::int64_t least) {
    require(value >= least && value <= kMost, operation, name, "expected ", least, " to ", kMost,
            ", got ", value);
  };
  in_range("tokens", problem.tokens, 0);
  in_range("depth", problem.depth, 1);
  in_range("hidden", problem.hidden, 1);
  require(problem.dtype != DType::f32, operation, "dtype",
          "expected bf16 or f16, which the tensor cores multiply exactly, got f32");
  require(!problem.aligned || problem.depth % kVector == 0, operation, "aligned",
          "expected false, since depth ", problem.depth, " is no multiple of ", kVector);
}

GatherPlan plan_gather(const Device& device, const Problem& problem) {
  check_problem("cuda::plan_gather", problem);
  // Two warps at least, since what one waits for the other can use; at most what 128 registers
  // allow.
  constexpr std::int64_t kMinThreads = 64;
  constexpr std::int64_t kMaxThreads = kGatherThreads;
  // Blocks on an SM that hide L2's latency, and neurons that are worth a block of their own at the
  // 1 % of active ones that sparse models have.
  constexpr std::int64_t kBlocksPerSm = 2;
  constexpr std::int64_t kNeuronsPerSplit = 512;
  constexpr std::int64_t kMaxSplits = 16;
  GatherPlan plan;
  plan.dtype = problem.dtype;
  plan.gated = problem.gated;
  plan.aligned = problem.aligned;
  const std::int64_t columns = std::min<std::int64_t>(problem.depth, kGatherColumns);
  plan.threads = static_cast<int>(std::clamp(
      round_up(ceil_div(columns, kVector * kThreadVectors), 32), kMinThreads, kMaxThreads));
  plan.passes = static_cast<int>(ceil_div(problem.depth, kGatherColumns));
  const std::int64_t wanted = ceil_div(kBlocksPerSm * device.sm_count,
                                       std::max<std::int64_t>(problem.tokens * plan.passes, 1));
  const std::int64_t useful = ceil_div(problem.hidden, kNeuronsPerSplit);
  plan.splits = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, useful), 1, kMaxSplits));
  plan.overlaps_gemm = device.major >= 9;
  plan.shared_bytes = sizeof(ActiveList);
  return plan;
}

std::size_t GatherPlan::workspace_bytes(std::int64_t rows, std::int64_t depth) const {
  if (splits == 1) return 0;
  return static_cast<std::size_t>(round_up(rows * passes * 4, kWorkspaceAlignment) +
                                  round_up(rows * splits * depth * 4, kWorkspaceAlignment));
}

FfnPlan plan_ffn(const Device& device, const Problem& problem, std::size_t workspace_limit) {
  FfnPlan plan;
  plan.problem = problem;
  // The tile's width decides what a row takes, the block of rows decides the tile: the widest of
  // all bounds both.
  const std::int64_t row_bytes = round_up(problem.hidden, 256) * 4;
  const std::int64_t fitting = static_cast<std::int64_t>(workspace_limit) / row_bytes;
  constexpr std::int64_t kRowTile = 128;
  const std::int64_t most = std::max(fitting / kRowTile * kRowTile, kRowTile);
  const std::int64_t blocks = std::max<std::int64_t>(ceil_div(problem.tokens, most), 1);
  plan.row_block =
      blocks == 1 ? problem.tokens : round_up(ceil_div(problem.tokens, blocks), kRowTile);
  Problem block = problem;
  block.tokens = plan.row_block;
  plan.gemm = plan_gemm_relu_twell(device, block);
  plan.gather = plan_gather(device, block);
  const std::int64_t tiles = ceil_div(problem.hidden, plan.gemm.tile);
  plan.workspace_bytes =
      static_cast<std::size_t>(
          round_up(plan.row_block * tiles * 4, kWorkspaceAlignment) +
          round_up(plan.row_block * tiles * plan.gemm.tile * 4, kWorkspaceAlignment)) +
      plan.gather.workspace_bytes(plan.row_block, problem.depth);
  return plan;
}

std::string GatherPlan::to_string() const {
  return concat(gated ? "up and down: " : "down: ", name_of(dtype), aligned ? "" : " unaligned",
                ", ", threads, " threads a row, ", splits, " blocks a row, ", passes,
                " column passes, ", overlaps_gemm ? "overlaps the gate GEMM, " : "", shared_bytes,
                " B shared");
}

std::string FfnPlan::to_string() const {
  return concat("M=", problem.tokens, " D=", problem.depth, " H=", problem.hidden,
                ", rows in blocks of ", row_block, ", workspace ", workspace_bytes, " B; ",
                gemm.to_string(), "; ", gather.to_string());
}

}  // namespace twell::cuda
