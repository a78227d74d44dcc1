// twell_gated_ffn and twell_spmm: one kernel, with and without the up half.
#include "core/check.h"
#include "cuda/kernels/common/check.h"
#include "cuda/ops/buffers.h"

namespace twell::cuda {
namespace {

struct Call {
  const char* operation;
  const GatherPlan& plan;
  const DeviceTwellView& gate;
  ConstMatrixView down;
  MatrixView y;
  const Workspace& workspace;
  cudaStream_t stream;
  const DeviceStats& stats;
};

void run(const Call& call, TwellGatherArgs args) {
  const GatherPlan& plan = call.plan;
  const std::int64_t rows = call.gate.layout.rows;
  const std::int64_t depth = call.down.cols;
  const Expected expected{call.operation, plan.dtype, plan.aligned};
  args.down = matrix_of(expected, "down", call.down, call.gate.layout.cols, depth);
  args.y = output_of(expected, call.y, rows, depth);
  args.y_stride = call.y.row_stride;
  args.gate = twell_of(call.operation, args.up.data != nullptr ? "gate" : "hidden", call.gate, rows,
                       call.down.rows, plan.dtype);
  require(depth <= std::int64_t{plan.passes} * kGatherColumns, call.operation, "plan",
          "expected a plan for ", depth, " columns, got one for fewer");
  require(plan.blocks == 0, call.operation, "plan",
          "expected one of plan_gather(), got one for a library's GEMM");
  // A grid has fewer than 2³¹ blocks in this direction; a plan may be used for more rows than it
  // was made for.
  require(rows * plan.splits < (std::int64_t{1} << 31), call.operation, "plan", "expected below ",
          (std::int64_t{1} << 31) / plan.splits, " rows for ", plan.splits, " blocks a row, got ",
          rows, "; plan for as many");
  check_plan_device(call.operation, plan.device);
  args.rows = static_cast<int>(rows);
  args.depth = static_cast<int>(depth);
  args.splits = plan.splits;
  args.row_nnz = call.stats.row_nnz;
  args.neuron_counts = reinterpret_cast<unsigned long long*>(call.stats.neuron_counts);
  Carver carver(call.operation, "workspace", call.workspace, plan.workspace_bytes(rows), false);
  if (rows == 0) return;
  if (plan.splits > 1) {
    const SplitBuffers buffers = carve_splits(carver, plan, rows);
    args.tickets = buffers.tickets;
    args.partial = buffers.partial;
    TWELL_CUDA_CHECK(cudaMemsetAsync(
        args.tickets, 0, static_cast<std::size_t>(buffers.ticket_count) * 4, call.stream));
  }
  GatherPlan alone = plan;  // what it follows here is the caller's, or a memset
  alone.overlaps_gemm = false;
  launch_twell_gather(alone, args, call.stream);
}

}  // namespace

void twell_gated_ffn(const GatherPlan& plan, ConstMatrixView x, const DeviceTwellView& gate,
                     ConstMatrixView up, ConstMatrixView down, MatrixView y,
                     const Workspace& workspace, Stream stream, const DeviceStats& stats) {
  constexpr const char* kOperation = "cuda::twell_gated_ffn";
  require(plan.gated, kOperation, "plan", "expected one of a gated layer");
  const Expected expected{kOperation, plan.dtype, plan.aligned};
  TwellGatherArgs args;
  args.x = matrix_of(expected, "x", x, gate.layout.rows, down.cols);
  args.up = matrix_of(expected, "up", up, gate.layout.cols, down.cols);
  require_apart(kOperation, "y", y, "x", x);
  run({kOperation, plan, gate, down, y, workspace, static_cast<cudaStream_t>(stream), stats}, args);
}

void twell_spmm(const GatherPlan& plan, const DeviceTwellView& hidden, ConstMatrixView down,
                MatrixView y, const Workspace& workspace, Stream stream, const DeviceStats& stats) {
  constexpr const char* kOperation = "cuda::twell_spmm";
  require(!plan.gated, kOperation, "plan", "expected one of a layer without gate");
  run({kOperation, plan, hidden, down, y, workspace, static_cast<cudaStream_t>(stream), stats}, {});
}

}  // namespace twell::cuda
