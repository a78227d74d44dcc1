#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/common/twell_dense.cuh"

namespace twell::cuda {

void launch_twell_to_dense(const TwellToDenseArgs& args, cudaStream_t stream) {
  constexpr std::int64_t kThreads = 128;
  const std::int64_t blocks =
      (static_cast<std::int64_t>(args.rows) * args.twell.tiles + kThreads - 1) / kThreads;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(blocks));
  shape.threads = static_cast<int>(kThreads);
  shape.stream = stream;
  launch_kernel(twell_to_dense_kernel, shape, args);
}

}  // namespace twell::cuda
