#include <string>

#include "bench/cuda/dense_ffn.h"
#include "kernels/cuda/common/check.h"
#include "kernels/cuda/common/element.cuh"

namespace twell::bench {
namespace {

// cuBLAS's own recommendation for Hopper; a workspace of the caller's makes it capturable.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorKind::environment, call, cublasGetStatusString(status));
  }
}

__global__ void relu_times(const std::uint16_t* gate_up, std::uint16_t* hidden_state, int hidden) {
  const int n = (static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x)) * 8;
  if (n >= hidden) return;
  const std::int64_t row = blockIdx.y;
  const uint4 g = *reinterpret_cast<const uint4*>(gate_up + row * 2 * hidden + n);
  const uint4 u = *reinterpret_cast<const uint4*>(gate_up + row * 2 * hidden + hidden + n);
  const auto product = [](std::uint32_t a, std::uint32_t b) {
    return cuda::Bf16::round2(fmaxf(cuda::Bf16::low(a), 0.0F) * cuda::Bf16::low(b),
                              fmaxf(cuda::Bf16::high(a), 0.0F) * cuda::Bf16::high(b));
  };
  *reinterpret_cast<uint4*>(hidden_state + row * hidden + n) =
      make_uint4(product(g.x, u.x), product(g.y, u.y), product(g.z, u.z), product(g.w, u.w));
}

}  // namespace

DenseFfn::DenseFfn(cudaStream_t stream) : stream_(stream) {
  check(cublasCreate(&handle_), "cublasCreate");
  check(cublasSetStream(handle_, stream_), "cublasSetStream");
  TWELL_CUDA_CHECK(cudaMalloc(&workspace_, kWorkspaceBytes));
  check(cublasSetWorkspace(handle_, workspace_, kWorkspaceBytes), "cublasSetWorkspace");
}

DenseFfn::~DenseFfn() {
  (void)cublasDestroy(handle_);
  (void)cudaFree(workspace_);
}

// cuBLAS is column-major: cᵀ [n, m] = (bᵀ)ᵀ aᵀ.
void DenseFfn::gemm(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* c, int m, int n,
                    int k) const {
  const float one = 1.0F;
  const float zero = 0.0F;
  check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, b, CUDA_R_16BF, k, a,
                     CUDA_R_16BF, k, &zero, c, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

void DenseFfn::run(const std::uint16_t* x, const DenseWeights& weights, const DenseBuffers& buffers,
                   std::uint16_t* y, int tokens, int depth, int hidden) const {
  gemm(x, weights.gate_up, buffers.gate_up, tokens, 2 * hidden, depth);
  const dim3 grid(static_cast<unsigned>((hidden / 8 + 255) / 256), static_cast<unsigned>(tokens));
  relu_times<<<grid, 256, 0, stream_>>>(buffers.gate_up, buffers.hidden, hidden);
  TWELL_CUDA_CHECK(cudaGetLastError());
  // Wd is neuron-major [H, D]: without a transpose.
  const float one = 1.0F;
  const float zero = 0.0F;
  check(cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, depth, tokens, hidden, &one, weights.down,
                     CUDA_R_16BF, depth, buffers.hidden, CUDA_R_16BF, hidden, &zero, y, CUDA_R_16BF,
                     depth, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace twell::bench
