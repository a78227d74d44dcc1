#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sm80/gather_rows.cuh"
#include "cuda/kernels/sm80/twell_gated_ffn.cuh"

namespace twell::cuda {
namespace {

template <class T, bool kGated, bool kAligned>
void launch(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.splits);
  launch_kernel(twell_gather_sm80<T, kGated, kAligned>,
                {dim3(blocks, static_cast<unsigned>(plan.passes)), plan.threads, plan.shared_bytes,
                 stream, plan.overlaps_gemm},
                args);
}

template <class T, bool kGated, bool kAligned>
void launch(const GatherPlan& plan, const GatherRowsArgs& args, cudaStream_t stream) {
  launch_kernel(gather_rows_sm80<T, kGated, kAligned>,
                {dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.passes)),
                 plan.threads, plan.shared_bytes, stream},
                args);
}

template <class T, class Args>
void launch_for(const GatherPlan& plan, const Args& args, cudaStream_t stream) {
  if (plan.gated) {
    plan.aligned ? launch<T, true, true>(plan, args, stream)
                 : launch<T, true, false>(plan, args, stream);
  } else {
    plan.aligned ? launch<T, false, true>(plan, args, stream)
                 : launch<T, false, false>(plan, args, stream);
  }
}

template <class Args>
void launch_gather(const GatherPlan& plan, const Args& args, cudaStream_t stream) {
  if (plan.dtype == DType::bf16) {
    launch_for<Bf16>(plan, args, stream);
  } else {
    launch_for<F16>(plan, args, stream);
  }
}

}  // namespace

void launch_twell_gather(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream) {
  launch_gather(plan, args, stream);
}

void launch_gather_rows(const GatherPlan& plan, const GatherRowsArgs& args, cudaStream_t stream) {
  launch_gather(plan, args, stream);
}

}  // namespace twell::cuda
