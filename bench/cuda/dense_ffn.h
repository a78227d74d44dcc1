// The dense layer as a library computes it: the baseline.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace twell::bench {

struct DenseWeights {
  const std::uint16_t* gate_up;  // [2H, D]: gate over up, joined into one GEMM
  const std::uint16_t* down;     // [H, D]
};

struct DenseBuffers {
  std::uint16_t* gate_up;  // [M, 2H]
  std::uint16_t* hidden;   // [M, H]
};

class DenseFfn {
 public:
  explicit DenseFfn(cudaStream_t stream);
  ~DenseFfn();
  DenseFfn(const DenseFfn&) = delete;
  DenseFfn& operator=(const DenseFfn&) = delete;

  // y [M, D] = (relu(x Wgᵀ) ⊙ (x Wuᵀ)) Wd in bf16, f32 sums: cuBLAS, an elementwise kernel, cuBLAS.
  void run(const std::uint16_t* x, const DenseWeights& weights, const DenseBuffers& buffers,
           std::uint16_t* y, int tokens, int depth, int hidden) const;
  // c [m, n] = a [m, k] b [n, k]ᵀ.
  void gemm(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* c, int m, int n,
            int k) const;

 private:
  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace twell::bench
