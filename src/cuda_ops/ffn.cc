// The whole layer, block of rows by block of rows.
//
// The packed activation lives in workspace with a capacity of the whole tile, so that no tile can
// overflow: that takes 4 bytes an element whatever the density, reserved once and bounded by the
// block of rows. Only the words that hold non-zeros are ever touched: at 1 % density a row of 5,632
// neurons writes some 20 sectors of 32 bytes, as the compact layout would.
#include "core/check.h"
#include "cuda_ops/arguments.h"
#include "cuda_ops/run.h"
#include "kernels/cuda/common/check.h"

namespace twell::cuda {
namespace {

constexpr const char* kOperation = "cuda::ffn";

// The rows from `first` on.
DeviceMatrix rows_from(const DeviceMatrix& matrix, std::int64_t first) {
  return {matrix.data + first * matrix.stride, matrix.stride};
}

}  // namespace

Problem problem_of(ConstMatrixView x, const DeviceFfnWeights& weights, ConstMatrixView y) {
  const auto weight = [&](const char* name, const ConstMatrixView& view) {
    check_shape(kOperation, name, view, x.dtype, weights.gate.rows, x.cols);
  };
  weight("gate", weights.gate);
  if (weights.up.data != nullptr) weight("up", weights.up);
  weight("down", weights.down);
  check_shape(kOperation, "y", y, x.dtype, x.rows, x.cols);
  Problem problem;
  problem.tokens = x.rows;
  problem.depth = x.cols;
  problem.hidden = weights.gate.rows;
  problem.dtype = x.dtype;
  problem.gated = weights.up.data != nullptr;
  problem.aligned = is_aligned(x) && is_aligned(weights.gate) && is_aligned(weights.down) &&
                    is_aligned(y) && (!problem.gated || is_aligned(weights.up));
  return problem;
}

void ffn(const FfnPlan& plan, ConstMatrixView x, const DeviceFfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, const Workspace& workspace,
         Stream stream_handle, const DeviceStats& stats) {
  const Problem& problem = plan.problem;
  const Expected expected{kOperation, problem.dtype, problem.aligned};
  auto* stream = static_cast<cudaStream_t>(stream_handle);

  GemmReluTwellArgs gemm;
  const DeviceMatrix tokens = matrix_of(expected, "x", x, problem.tokens, problem.depth);
  gemm.weight = matrix_of(expected, "gate", weights.gate, problem.hidden, problem.depth);
  gemm.depth = static_cast<int>(problem.depth);
  gemm.cols = static_cast<int>(problem.hidden);
  gemm.activation = activation_args(kOperation, activation);
  gemm.raster_group = plan.gemm.raster_group;

  TwellGatherArgs gather;
  require((weights.up.data != nullptr) == problem.gated, kOperation, "up",
          problem.gated ? "expected it, since the plan is for a gated layer"
                        : "expected none, since the plan is for a layer without gate");
  if (problem.gated) {
    gather.up = matrix_of(expected, "up", weights.up, problem.hidden, problem.depth);
  }
  gather.down = matrix_of(expected, "down", weights.down, problem.hidden, problem.depth);
  std::uint16_t* output = output_of(expected, y, problem.tokens, problem.depth);
  gather.y_stride = y.row_stride;
  gather.depth = gemm.depth;
  gather.splits = plan.gather.splits;
  gather.neuron_counts = reinterpret_cast<unsigned long long*>(stats.neuron_counts);
  if (stats.row_nnz != nullptr) check_device_pointer(kOperation, "row_nnz", stats.row_nnz);
  if (stats.neuron_counts != nullptr) {
    check_device_pointer(kOperation, "neuron_counts", stats.neuron_counts);
  }

  Carver carver(kOperation, workspace, plan.workspace_bytes);
  DeviceTwell& packed = gemm.out;
  packed.tile = packed.capacity = plan.gemm.tile;
  packed.tiles = static_cast<int>((problem.hidden + plan.gemm.tile - 1) / plan.gemm.tile);
  const std::int64_t block_tiles = plan.row_block * packed.tiles;
  packed.counts = carver.take<std::int32_t>(block_tiles);
  packed.slots = carver.take<std::uint32_t>(block_tiles * packed.tile);
  gather.gate = packed;
  if (gather.splits > 1) {
    const std::int64_t tickets = plan.row_block * plan.gather.passes;
    gather.tickets = carver.take<std::uint32_t>(tickets);
    gather.partial = carver.take<float>(plan.row_block * plan.gather.splits * problem.depth);
    gemm.cleared = gather.tickets;
    gemm.cleared_words = static_cast<int>(tickets);
  }

  for (std::int64_t first = 0; first < problem.tokens; first += plan.row_block) {
    const auto rows = static_cast<int>(std::min(plan.row_block, problem.tokens - first));
    gemm.x = gather.x = rows_from(tokens, first);
    gemm.rows = gather.rows = rows;
    gather.y = output + first * y.row_stride;
    gather.row_nnz = stats.row_nnz == nullptr ? nullptr : stats.row_nnz + first;
    launch_gemm_relu_twell(plan.gemm, gemm, stream);
    launch_twell_gather(plan.gather, gather, stream);
  }
}

}  // namespace twell::cuda
