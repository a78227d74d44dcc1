// The forward pass of training: the layer around a library's GEMMs, which keeps what fired.
#include "cuda/kernels/common/check.h"
#include "cuda/ops/run.h"

namespace twell::cuda {

void ffn_forward(const TrainPlan& plan, ConstMatrixView x, const FfnWeights& weights,
                 const ActivationSpec& activation, MatrixView y, const Workspace& kept,
                 const Workspace& workspace, Stream stream, const DeviceStats& stats, float* l1) {
  constexpr const char* kOperation = "cuda::ffn_forward";
  const Problem& problem = plan.forward.problem;
  FfnCall call = call_of(kOperation, plan.forward, x, weights, activation, y, stream, stats);
  if (!problem.trusted && l1 != nullptr) check_device_pointer(kOperation, "l1", l1);
  Carver keeper(kOperation, "kept", kept, plan.kept_bytes, problem.trusted);
  Carver carver(kOperation, "workspace", workspace, plan.workspace_bytes, problem.trusted);
  Keeping keeping;
  keeping.buffers = carve_kept(keeper, plan);
  keeping.places = plan.kept_places;
  keeping.l1 = l1;
  const FfnBuffers buffers = carve_ffn(carver, plan.forward, true);
  keeping.chunk_l1 = carver.take<float>(plan.forward.gather.partials);
  call.keeping = &keeping;
  if (problem.tokens > 0) {
    run_library(call, buffers);
  } else if (keeping.buffers.offsets != nullptr) {
    TWELL_CUDA_CHECK(
        cudaMemsetAsync(keeping.buffers.offsets, 0, sizeof(std::int64_t), call.stream));
  }
}

}  // namespace twell::cuda
