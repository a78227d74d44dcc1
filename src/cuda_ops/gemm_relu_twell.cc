#include <cmath>

#include "core/check.h"
#include "cuda_ops/arguments.h"
#include "cuda_ops/run.h"

namespace twell::cuda {

ActivationArgs activation_args(const char* operation, const ActivationSpec& activation) {
  const float kept_above = activation.kept_above();
  require(kept_above >= 0 && std::isfinite(kept_above), operation, "activation",
          "expected a threshold of 0 or more, got ", kept_above);
  return {kept_above, activation.kind};
}

void gemm_relu_twell(const GemmPlan& plan, ConstMatrixView x, ConstMatrixView weight,
                     const ActivationSpec& activation, const DeviceTwellView& out, Stream stream) {
  constexpr const char* kOperation = "cuda::gemm_relu_twell";
  const Expected expected{kOperation, plan.dtype, plan.aligned};
  GemmReluTwellArgs args;
  args.x = matrix_of(expected, "x", x, x.rows, weight.cols);
  args.weight = matrix_of(expected, "weight", weight, weight.rows, x.cols);
  args.rows = static_cast<int>(x.rows);
  args.depth = static_cast<int>(x.cols);
  args.cols = static_cast<int>(weight.rows);
  args.activation = activation_args(kOperation, activation);
  args.out = twell_of(kOperation, "out", out, x.rows, weight.rows, plan.dtype);
  args.raster_group = plan.raster_group;
  require(out.layout.tile == plan.tile, kOperation, "out", "expected the plan's tile ", plan.tile,
          ", got ", out.layout.tile);
  const bool streams = plan.stages == 0;
  require(!streams || x.rows <= plan.block_rows, kOperation, "plan", "expected a plan for ", x.rows,
          " rows, got one for at most ", plan.block_rows);
  if (x.rows == 0) return;
  launch_gemm_relu_twell(plan, args, static_cast<cudaStream_t>(stream));
}

}  // namespace twell::cuda
