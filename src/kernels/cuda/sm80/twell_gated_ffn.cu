#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm80/twell_gated_ffn.cuh"

namespace twell::cuda {
namespace {

template <class T, bool kGated, bool kAligned>
void launch(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.splits);
  launch_kernel(twell_gather_sm80<T, kGated, kAligned>,
                {dim3(blocks, static_cast<unsigned>(plan.passes)), plan.threads, sizeof(ActiveList),
                 stream, plan.overlaps_gemm},
                args);
}

template <class T, bool kGated>
void launch_aligned(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  if (plan.aligned) {
    launch<T, kGated, true>(plan, args, stream);
  } else {
    launch<T, kGated, false>(plan, args, stream);
  }
}

template <class T>
void launch_gated(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  if (plan.gated) {
    launch_aligned<T, true>(plan, args, stream);
  } else {
    launch_aligned<T, false>(plan, args, stream);
  }
}

}  // namespace

void launch_twell_gather(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  if (plan.dtype == DType::bf16) {
    launch_gated<Bf16>(plan, args, stream);
  } else {
    launch_gated<F16>(plan, args, stream);
  }
}

}  // namespace twell::cuda
