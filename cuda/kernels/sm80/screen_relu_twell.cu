#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sm80/make_screen.cuh"
#include "cuda/kernels/sm80/screen_relu_twell.cuh"

namespace twell::cuda {
namespace {

template <class T, bool kAligned>
void launch_screen(const GemmPlan& plan, const GemmReluTwellArgs& args, cudaStream_t stream) {
  const int blocks = (args.cols + ScreenTiles::kNeurons - 1) / ScreenTiles::kNeurons;
  launch_kernel(
      screen_relu_twell_sm80<T, kAligned>,
      {dim3(static_cast<unsigned>(blocks)), ScreenTiles::kThreads, plan.shared_bytes, stream},
      args);
}

template <class T, bool kAligned>
void launch_make(const MakeScreenArgs& args, cudaStream_t stream) {
  const int groups = (args.cols + ScreenTiles::kNeurons - 1) / ScreenTiles::kNeurons;
  const int blocks = groups * ScreenTiles::kNeurons / kMakeScreenNeurons;
  launch_kernel(make_screen_sm80<T, kAligned>,
                {dim3(static_cast<unsigned>(blocks)), kMakeScreenNeurons * 32, 0, stream}, args);
}

template <class T>
void launch_make_for(bool aligned, const MakeScreenArgs& args, cudaStream_t stream) {
  return aligned ? launch_make<T, true>(args, stream) : launch_make<T, false>(args, stream);
}

template <class T>
void launch_for(const GemmPlan& plan, const GemmReluTwellArgs& args, cudaStream_t stream) {
  return plan.aligned ? launch_screen<T, true>(plan, args, stream)
                      : launch_screen<T, false>(plan, args, stream);
}

}  // namespace

void launch_screen_relu_twell(const GemmPlan& plan, const GemmReluTwellArgs& args,
                              cudaStream_t stream) {
  if (plan.dtype == DType::bf16) {
    launch_for<Bf16>(plan, args, stream);
  } else {
    launch_for<F16>(plan, args, stream);
  }
}

void launch_make_screen(DType dtype, bool aligned, const MakeScreenArgs& args,
                        cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_make_for<Bf16>(aligned, args, stream);
  } else {
    launch_make_for<F16>(aligned, args, stream);
  }
}

}  // namespace twell::cuda
