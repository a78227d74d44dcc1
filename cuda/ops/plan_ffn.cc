// Plans of the gather and of the whole layer. Pure functions of the device's figures and the
// problem.
#include <algorithm>

#include "core/check.h"
#include "cuda/kernels/shapes.h"
#include "cuda/ops/buffers.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {

void check_problem(const char* operation, const Problem& problem) {
  const auto in_range = [&](const char* name, std::int64_t value, std::int64_t least) {
    require(value >= least && value <= kMostSize, operation, name, "expected ", least, " to ",
            kMostSize, ", got ", value);
  };
  in_range("tokens", problem.tokens, 0);
  in_range("width", problem.width, 1);
  in_range("neurons", problem.neurons, 1);
  require(problem.dtype != DType::f32, operation, "dtype",
          "expected bf16 or f16, which the tensor cores multiply exactly, got f32");
  require(!problem.aligned || problem.width % kVector == 0, operation, "aligned",
          "expected false, since width ", problem.width, " is no multiple of ", kVector);
  require(problem.hot >= 0 && problem.hot <= problem.neurons, operation, "hot", "expected 0 to ",
          problem.neurons, ", got ", problem.hot);
  require(!problem.joined || problem.gated, operation, "joined",
          "expected false, since a layer without gate has no up to join");
  require(problem.candidates >= 0 && problem.candidates <= 1, operation, "candidates",
          "expected a share of 0 to 1, got ", problem.candidates);
}

GatherPlan plan_gather(const Device& device, const Problem& problem) {
  check_problem("cuda::plan_gather", problem);
  // Two warps at least, since what one waits for the other can use; at most what 128 registers
  // allow.
  constexpr std::int64_t kMinThreads = 64;
  constexpr std::int64_t kMaxThreads = kGatherThreads;
  // Neurons that are worth a block of their own at the 1 % of active ones that sparse models have.
  constexpr std::int64_t kNeuronsPerSplit = 512;
  constexpr std::int64_t kMaxSplits = 16;
  GatherPlan plan;
  plan.device = device.ordinal;
  plan.dtype = problem.dtype;
  plan.gated = problem.gated;
  plan.aligned = problem.aligned;
  const std::int64_t columns = std::min<std::int64_t>(problem.width, kGatherColumns);
  plan.threads = static_cast<int>(
      std::clamp(round_up(ceil_div(columns, kThreadFloats), 32), kMinThreads, kMaxThreads));
  plan.block_floats =
      static_cast<int>(round_up(columns, std::int64_t{plan.threads} * kThreadFloats));
  plan.passes = static_cast<int>(ceil_div(problem.width, kGatherColumns));
  const std::int64_t wanted = ceil_div(std::int64_t{kGatherBlocks} * device.sm_count,
                                       std::max<std::int64_t>(problem.tokens * plan.passes, 1));
  const std::int64_t useful = ceil_div(problem.neurons, kNeuronsPerSplit);
  plan.splits = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, useful), 1, kMaxSplits));
  plan.overlaps_gemm = device.major >= 9;
  plan.shared_bytes =
      sizeof(ActiveList) + static_cast<std::size_t>(plan.block_floats) * sizeof(float);
  return plan;
}

std::size_t GatherPlan::workspace_bytes(std::int64_t rows) const {
  if (splits == 1) return 0;
  Carver measured;
  carve_splits(measured, *this, rows);
  return measured.used();
}

GemmPlan plan_gate(const Device& device, const Problem& problem, std::int64_t hot, bool joined,
                   std::optional<GemmShape> shape) {
  if (hot == 0) {
    return shape ? plan_gemm_relu_twell(*shape, device, problem)
                 : plan_gemm_relu_twell(device, problem);
  }
  // A row's list has the others.
  const auto tile = static_cast<std::int32_t>(round_up(problem.neurons - hot, 16));
  GemmPlan plan = plan_library_gemm(device, problem, std::max(tile, 16), joined ? hot : 0);
  if (waits_for_up(problem, hot, joined)) {
    plan.block_rows = static_cast<int>(std::max<std::int64_t>(problem.tokens, 1));
  }
  return plan;
}

std::size_t workspace_bytes(const FfnPlan& plan) {
  Carver measured;
  carve_ffn(measured, plan);
  return measured.used();
}

FfnPlan plan_ffn(const Device& device, const Problem& problem, std::size_t workspace_limit,
                 std::optional<GemmShape> shape) {
  constexpr const char* kOperation = "cuda::plan_ffn";
  check_problem(kOperation, problem);
  FfnPlan plan;
  plan.problem = problem;
  plan.hot = hot_of(problem);
  if (shape && shape != GemmShape::library) plan.hot = 0;
  plan.joined = joins(device, problem, plan.hot);
  const auto shaped = [&](std::int64_t rows) {
    plan.row_block = rows;
    Problem block = problem;
    block.tokens = rows;
    plan.gemm = plan_gate(device, block, plan.hot, plan.joined, shape);
    plan.gather = plan.gemm.shape == GemmShape::library ? plan_gather_rows(device, block)
                                                        : plan_gather(device, block);
    plan.workspace_bytes = workspace_bytes(plan);
    return plan.workspace_bytes <= workspace_limit;
  };
  // Halved until it fits, each a multiple of what a GEMM's block takes.
  constexpr std::int64_t kRowTile = 128;
  std::int64_t rows = rows_at_a_time(device, problem, plan.hot);
  while (!shaped(rows) && rows > kRowTile) rows = round_up(ceil_div(rows, 2), kRowTile);
  return plan;
}

std::string GatherPlan::to_string() const {
  const std::string shares =
      blocks > 0 ? concat(blocks, " blocks, chunks of ", chunk, ", ", partials, " partial sums")
                 : concat(splits, " blocks a row");
  return concat(gated ? "up and down: " : "down: ", name_of(dtype), aligned ? "" : " unaligned",
                ", ", threads, " threads a block, ", shares, ", ", passes, " column passes, ",
                overlaps_gemm ? "overlaps the gate GEMM, " : "", shared_bytes, " B shared");
}

std::string FfnPlan::to_string() const {
  return concat("M=", problem.tokens, " D=", problem.width, " H=", problem.neurons,
                ", rows in blocks of ", row_block, ", workspace ", workspace_bytes, " B, ", hot,
                " hot neurons", joined ? ", joined" : "", "; ", gemm.to_string(), "; ",
                gather.to_string());
}

}  // namespace twell::cuda
