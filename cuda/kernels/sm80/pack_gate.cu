#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sm80/hot_product.cuh"
#include "cuda/kernels/sm80/pack_gate.cuh"

namespace twell::cuda {
namespace {

template <class T>
void launch_pack(const PackGateArgs& args, cudaStream_t stream) {
  const LaunchShape shape = {dim3(static_cast<unsigned>(args.rows)), kPackThreads,
                             sizeof(PackShared), stream};
  if (args.gate.wide) {
    launch_kernel(pack_gate_sm80<T, true, true>, shape, args);
  } else if (args.gate.aligned) {
    launch_kernel(pack_gate_sm80<T, false, true>, shape, args);
  } else {
    launch_kernel(pack_gate_sm80<T, false, false>, shape, args);
  }
}

template <class T>
void launch_product(const HotProductArgs& args, cudaStream_t stream) {
  const LaunchShape shape = product_shape(args.rows, args.cols, stream);
  if (args.gate.wide) {
    launch_kernel(hot_product_sm80<T, true>, shape, args);
  } else {
    launch_kernel(hot_product_sm80<T, false>, shape, args);
  }
}

}  // namespace

void launch_pack_gate(DType dtype, const PackGateArgs& args, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_pack<Bf16>(args, stream);
  } else {
    launch_pack<F16>(args, stream);
  }
}

void launch_hot_product(DType dtype, const HotProductArgs& args, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_product<Bf16>(args, stream);
  } else {
    launch_product<F16>(args, stream);
  }
}

}  // namespace twell::cuda
