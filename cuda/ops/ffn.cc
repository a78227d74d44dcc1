// The whole layer: arguments, and which way it goes.
//
// The packed activation lives in workspace with a capacity of the whole tile, so that no tile can
// overflow: that takes 4 bytes an element whatever the density, reserved once and bounded by the
// block of rows. Only the words that hold non-zeros are ever touched: at 1 % density a row of 5,632
// neurons writes some 20 sectors of 32 bytes, as the compact layout would.
#include "core/check.h"
#include "cuda/ops/run.h"

namespace twell::cuda {
namespace {

constexpr const char* kFfn = "cuda::ffn";

// Whether `b` is where the rows of `a` go on.
bool follows(const ConstMatrixView& b, const ConstMatrixView& a) {
  const auto* end = static_cast<const std::uint16_t*>(a.data) + a.rows * a.row_stride;
  return b.data == end && b.row_stride == a.row_stride;
}

}  // namespace

Problem problem_of(ConstMatrixView x, const FfnWeights& weights, ConstMatrixView y,
                   const ActivationSpec& activation) {
  const ConstMatrixView gate = weights.gate.matrix(), up = up_of(weights),
                        down = weights.down.matrix();
  const auto weight = [&](const char* name, const ConstMatrixView& view) {
    check_shape(kFfn, name, view, x.dtype, gate.rows, x.cols);
  };
  weight("gate", gate);
  if (up.data != nullptr) weight("up", up);
  weight("down", down);
  check_shape(kFfn, "y", y, x.dtype, x.rows, x.cols);
  Problem problem;
  problem.tokens = x.rows;
  problem.width = x.cols;
  problem.neurons = gate.rows;
  problem.dtype = x.dtype;
  problem.gated = up.data != nullptr;
  problem.joined = problem.gated && follows(up, gate);
  problem.activation = activation.kind;
  problem.screened = weights.screen.data != nullptr;
  problem.aligned = is_aligned(x) && is_aligned(gate) && is_aligned(down) && is_aligned(y) &&
                    (!problem.gated || is_aligned(up));
  return problem;
}

FfnCall call_of(const char* operation, const FfnPlan& plan, const ConstMatrixView& x,
                const FfnWeights& weights, const ActivationSpec& activation, const MatrixView& y,
                Stream stream, const DeviceStats& stats) {
  const Problem& problem = plan.problem;
  const Expected expected{operation, problem.dtype, problem.aligned, problem.trusted};
  const ConstMatrixView gate = weights.gate.matrix(), up = up_of(weights);
  FfnCall call{plan};
  call.x = matrix_of(expected, "x", x, problem.tokens, problem.width);
  call.gate = matrix_of(expected, "gate", gate, problem.neurons, problem.width);
  require_gated(operation, "up", up, problem);
  if (problem.gated) {
    call.up = matrix_of(expected, "up", up, problem.neurons, problem.width);
  }
  require(!problem.joined || follows(up, gate), operation, "up",
          "expected right behind gate in memory, as the plan has it; plan with joined = false");
  call.down = matrix_of(expected, "down", weights.down.matrix(), problem.neurons, problem.width);
  if (plan.gemm.shape == GemmShape::screen32x32) {
    call.screen = screen_of(expected, weights.screen, problem.neurons, problem.width);
  }
  call.y = output_of(expected, y, problem.tokens, problem.width);
  call.y_stride = y.row_stride;
  require_apart(operation, "y", y, "x", x);
  call.activation = activation_args(operation, activation);
  check_activation(operation, plan.gemm, activation);
  call.stats = stats;
  call.stream = static_cast<cudaStream_t>(stream);
  check_plan_device(operation, plan.gather.device);
  if (!problem.trusted) {
    if (stats.row_nnz != nullptr) check_device_pointer(operation, "row_nnz", stats.row_nnz);
    if (stats.neuron_counts != nullptr) {
      check_device_pointer(operation, "neuron_counts", stats.neuron_counts);
    }
    if (stats.candidates != nullptr) {
      check_device_pointer(operation, "candidates", stats.candidates);
    }
  }
  return call;
}

void ffn(const FfnPlan& plan, ConstMatrixView x, const FfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, const Workspace& workspace, Stream stream,
         const DeviceStats& stats) {
  const FfnCall call = call_of(kFfn, plan, x, weights, activation, y, stream, stats);
  Carver carver(kFfn, "workspace", workspace, plan.workspace_bytes, plan.problem.trusted);
  if (plan.problem.tokens == 0) return;
  const FfnBuffers buffers = carve_ffn(carver, plan);
  if (plan.gemm.shape == GemmShape::library) {
    run_library(call, buffers);
  } else {
    run_fused(call, buffers);
  }
}

}  // namespace twell::cuda
