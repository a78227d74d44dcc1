#include "core/check.h"
#include "cuda/ops/backward_call.h"

namespace twell::cuda {
namespace {

constexpr const char* kFfnBackward = "cuda::ffn_backward";

WeightGradient gradient_of(const Expected& expected, const char* name, const MatrixView& view,
                           const Problem& problem) {
  return {memory_of(expected, name, view, problem.neurons, problem.width), view.row_stride};
}

}  // namespace

void ffn_backward(const TrainPlan& plan, const DeviceFfnBackward& in, const DeviceFfnGradients& out,
                  const Workspace& kept, const Workspace& workspace, Stream stream) {
  const Problem& problem = plan.forward.problem;
  const Expected expected{kFfnBackward, problem.dtype, problem.aligned, problem.trusted};
  BackwardCall call{plan};
  const auto weight = [&](const char* name, const ConstMatrixView& view) {
    return matrix_of(expected, name, view, problem.neurons, problem.width);
  };
  call.dy = matrix_of({kFfnBackward, problem.dtype, false, problem.trusted}, "dy", in.dy,
                      problem.tokens, problem.width);
  call.x = matrix_of(expected, "x", in.x, problem.tokens, problem.width);
  require_gated(kFfnBackward, "up", up_of(in.weights), problem);
  require_gated(kFfnBackward, "gradient of up", out.up, problem);
  call.gate = weight("gate", in.weights.gate.matrix());
  if (problem.gated) call.up = weight("up", up_of(in.weights));
  call.down = weight("down", in.weights.down.matrix());
  call.activation = activation_args(kFfnBackward, in.activation);
  check_activation(kFfnBackward, plan.forward.gemm, in.activation);
  call.l1 = in.l1;

  call.wide = out.gate.dtype == DType::f32;
  call.accumulate = out.accumulate;
  require(call.wide || !out.accumulate, kFfnBackward, "gradient of gate",
          "expected f32, to add to, got ", name_of(out.gate.dtype));
  const Expected written{kFfnBackward, call.wide ? DType::f32 : problem.dtype, false,
                         problem.trusted};
  call.dx =
      static_cast<std::uint16_t*>(memory_of({kFfnBackward, problem.dtype, false, problem.trusted},
                                            "dx", out.dx, problem.tokens, problem.width));
  call.dx_stride = out.dx.row_stride;
  call.dgate = gradient_of(written, "gradient of gate", out.gate, problem);
  if (problem.gated) call.dup = gradient_of(written, "gradient of up", out.up, problem);
  call.ddown = gradient_of(written, "gradient of down", out.down, problem);
  call.aligned = problem.aligned && is_aligned(in.dy) && is_aligned(out.dx) &&
                 is_aligned(out.gate) && is_aligned(out.down) &&
                 (!problem.gated || is_aligned(out.up));
  require_apart(kFfnBackward, "dx", out.dx, "x", in.x);
  require_apart(kFfnBackward, "dx", out.dx, "dy", in.dy);
  check_plan_device(kFfnBackward, plan.rows.device);
  if (!problem.trusted && in.l1 != nullptr) check_device_pointer(kFfnBackward, "l1", in.l1);
  call.stream = static_cast<cudaStream_t>(stream);
  Carver keeper(kFfnBackward, "kept", kept, plan.kept_bytes, problem.trusted);
  Carver carver(kFfnBackward, "workspace", workspace, plan.workspace_bytes, problem.trusted);
  call.kept = carve_kept(keeper, plan);
  call.b = carve_backward(carver, plan);
  if (plan.forward.hot > 0) multiply_backward(call);
  if (plan.forward.hot < problem.neurons) gather_backward(call);
}

}  // namespace twell::cuda
