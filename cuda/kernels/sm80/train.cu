#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sm80/backward_neurons.cuh"
#include "cuda/kernels/sm80/backward_rows.cuh"
#include "cuda/kernels/sm80/hot_backward.cuh"
#include "cuda/kernels/sm80/transpose_fired.cuh"

namespace twell::cuda {
namespace {

unsigned blocks_of(std::int64_t work, std::int64_t each) {
  return static_cast<unsigned>((work + each - 1) / each);
}

template <class T, bool kGated, bool kAligned>
void launch_neurons(const LaunchShape& shape, const BackwardNeuronsArgs& args) {
  if (args.wide) {
    launch_kernel(backward_neurons_sm80<T, kGated, true, kAligned>, shape, args);
  } else {
    launch_kernel(backward_neurons_sm80<T, kGated, false, kAligned>, shape, args);
  }
}

template <class T, bool kGated>
void launch(const GatherPlan& plan, const BackwardRowsArgs& args, cudaStream_t stream) {
  const LaunchShape shape = {
      dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.passes)), plan.threads,
      plan.shared_bytes, stream};
  if (plan.aligned) {
    launch_kernel(backward_rows_sm80<T, kGated, true>, shape, args);
  } else {
    launch_kernel(backward_rows_sm80<T, kGated, false>, shape, args);
  }
}

template <class T, bool kGated>
void launch(const GatherPlan& plan, const BackwardNeuronsArgs& args, cudaStream_t stream,
            int blocks) {
  const LaunchShape shape = {
      dim3(static_cast<unsigned>(blocks), blocks_of(args.depth, kGradientColumns)),
      kGradientThreads, 0, stream};
  if (plan.aligned) {
    launch_neurons<T, kGated, true>(shape, args);
  } else {
    launch_neurons<T, kGated, false>(shape, args);
  }
}

template <class Args, class... More>
void launch_backward(const GatherPlan& plan, const Args& args, cudaStream_t stream, More... more) {
  if (plan.dtype == DType::bf16) {
    plan.gated ? launch<Bf16, true>(plan, args, stream, more...)
               : launch<Bf16, false>(plan, args, stream, more...);
  } else {
    plan.gated ? launch<F16, true>(plan, args, stream, more...)
               : launch<F16, false>(plan, args, stream, more...);
  }
}

template <class T>
void launch_hot(const HotBackwardArgs& args, cudaStream_t stream) {
  const LaunchShape shape = product_shape(args.rows, args.cols, stream);
  if (args.u != nullptr) {
    launch_kernel(hot_backward_sm80<T, true>, shape, args);
  } else {
    launch_kernel(hot_backward_sm80<T, false>, shape, args);
  }
}

}  // namespace

void launch_scan_rows(const ScanRowsArgs& args, cudaStream_t stream) {
  launch_kernel(scan_rows_sm80, {dim3(1), kScanThreads, 32 * sizeof(int), stream}, args);
}

void launch_transpose(const TransposeArgs& args, cudaStream_t stream) {
  const LaunchShape by_rows = {
      dim3(static_cast<unsigned>(args.blocks), blocks_of(args.fired.stride, kTransposeWords)),
      kTransposeRows, sizeof(TransposeShared), stream};
  launch_kernel(count_fired_sm80, by_rows, args);
  launch_kernel(order_neurons_sm80,
                {dim3(blocks_of(std::int64_t{args.fired.stride} * 32, kOrderThreads)),
                 kOrderThreads, 0, stream},
                args);
  launch_kernel(place_fired_sm80, by_rows, args);
}

void launch_backward_rows(const GatherPlan& plan, const BackwardRowsArgs& args,
                          cudaStream_t stream) {
  launch_backward(plan, args, stream);
}

void launch_backward_neurons(const GatherPlan& plan, int blocks, const BackwardNeuronsArgs& args,
                             cudaStream_t stream) {
  launch_backward(plan, args, stream, blocks);
}

void launch_hot_backward(DType dtype, const HotBackwardArgs& args, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_hot<Bf16>(args, stream);
  } else {
    launch_hot<F16>(args, stream);
  }
}

void launch_absolute_sums(DType dtype, const AbsoluteSumsArgs& args, cudaStream_t stream) {
  const LaunchShape shape = {dim3(blocks_of(args.rows, kProductThreads / 32)), kProductThreads, 0,
                             stream};
  if (dtype == DType::bf16) {
    launch_kernel(absolute_sums_sm80<Bf16>, shape, args);
  } else {
    launch_kernel(absolute_sums_sm80<F16>, shape, args);
  }
}

}  // namespace twell::cuda
