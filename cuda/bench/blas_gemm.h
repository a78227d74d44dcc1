// A GEMM of cuBLAS at its best: the algorithms that cublasLt proposes and cublasGemmEx's own choice
// are timed, and the fastest is kept.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/bench/device_memory.h"
#include "cuda/bench/epilogue.h"
#include "cuda/bench/timer.h"
#include "cuda/ops/cublas_product.h"

namespace twell::bench {

// Handles and the workspace of all GEMMs on one stream.
class Blas {
 public:
  explicit Blas(cudaStream_t stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  cublasHandle_t handle() const { return handle_; }
  cublasLtHandle_t lt() const { return lt_; }
  cudaStream_t stream() const { return stream_; }
  void* workspace() const { return workspace_.get(); }
  std::size_t workspace_bytes() const { return workspace_.size(); }

 private:
  cudaStream_t stream_;
  cublasHandle_t handle_ = nullptr;
  cublasLtHandle_t lt_ = nullptr;
  DeviceMemory<std::byte> workspace_;
};

// c [m, n] = a [m, k] b in bf16 with f32 sums; b is [n, k], or [k, n] where `rows_are_inputs`. a is
// [k, m] where `a_by_depth`.
struct GemmProblem {
  int m = 0, n = 0, k = 0;
  bool rows_are_inputs = false;
  bool a_by_depth = false;
};
struct GemmOperands {
  const std::uint16_t* a = nullptr;
  const std::uint16_t* b = nullptr;
  std::uint16_t* c = nullptr;
  std::uint8_t* mask = nullptr;  // of Epilogue::relu_mask
};

// What cublasLt's GEMMs do besides multiplying, and cublasGemmEx does not.
struct GemmExtras {
  Epilogue epilogue = Epilogue::none;
  int sms = 0;  // to leave the others to somebody else; 0 for all
  bool any() const { return epilogue != Epilogue::none || sms != 0; }
};

class BlasGemm {
 public:
  // Times what there is on these operands, from device memory, and overwrites c.
  BlasGemm(const Blas& blas, Timer& timer, const GemmProblem& problem, const GemmOperands& operands,
           const GemmExtras& extras = {});
  void run(const GemmOperands& operands) const { run(best_, operands); }
  double best_us() const { return best_us_; }
  // Which it is, of how many.
  std::string to_string() const;

 private:
  static constexpr int kOwnChoice = -1;  // cublasGemmEx; none where there are extras
  void run(int candidate, const GemmOperands& operands) const;
  void run_own_choice(const GemmOperands& operands) const;

  const Blas& blas_;
  GemmProblem problem_;
  std::shared_ptr<const cuda::CublasProduct> product_;
  std::vector<cublasLtMatmulHeuristicResult_t> proposed_;
  int best_ = kOwnChoice;
  double best_us_ = 0.0;
};

}  // namespace twell::bench
