// One product as cuBLASLt has it described.
#pragma once

#include <vector>

#include "core/check.h"
#include "cuda/ops/cublas_lt.h"
#include "cuda/ops/library_gemm.h"

namespace twell::cuda {

inline void check_cublas(cublasStatus_t status, const char* operation, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::out_of_memory : ErrorKind::environment,
      concat("twell::", operation), concat(call, " failed with status ", static_cast<int>(status)));
}

// Of an address, at most what the library's kernels ask for.
inline std::uint32_t cublas_alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::uintptr_t lowest = address & (~address + 1);
  return static_cast<std::uint32_t>(lowest == 0 || lowest > 256 ? 256 : lowest);
}

// What the library copies in a call.
class CublasProduct {
 public:
  CublasProduct(const char* operation, DType dtype, const LibraryGemm& gemm) : lib_(cublas_lt()) {
    const cudaDataType_t in = dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
    const cudaDataType_t out = gemm.wide ? CUDA_R_32F : in;
    check_cublas(lib_.desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), operation,
                 "cublasLtMatmulDescCreate");
    // The library counts by columns: cᵀ = b aᵀ, whose operands lie as they are here.
    const auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
      const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      check_cublas(lib_.desc_set(product, which, &value, sizeof value), operation,
                   "cublasLtMatmulDescSetAttribute");
    };
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, !gemm.b_by_depth);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, gemm.a_by_depth);
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType_t type, std::int64_t rows,
                            std::int64_t cols, std::int64_t stride) {
      check_cublas(lib_.layout_create(&to, type, static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(cols), stride),
                   operation, "cublasLtMatrixLayoutCreate");
    };
    layout(first, in, gemm.b_by_depth ? gemm.cols : gemm.depth,
           gemm.b_by_depth ? gemm.depth : gemm.cols, gemm.b.stride);
    layout(second, in, gemm.a_by_depth ? gemm.rows : gemm.depth,
           gemm.a_by_depth ? gemm.depth : gemm.rows, gemm.a.stride);
    layout(result, out, gemm.cols, gemm.rows, gemm.c_stride);
  }
  ~CublasProduct() {
    if (product != nullptr) lib_.desc_destroy(product);
    for (auto* layout : {first, second, result}) {
      if (layout != nullptr) lib_.layout_destroy(layout);
    }
  }
  CublasProduct(const CublasProduct&) = delete;
  CublasProduct& operator=(const CublasProduct&) = delete;

  // Ways to multiply the operands of `gemm`, the best ones by the library's guess first; none where
  // it knows none.
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(const char* operation,
                                                         cublasLtHandle_t handle,
                                                         const LibraryGemm& gemm, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_cublas(lib_.preference_create(&preference), operation, "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
      check_cublas(lib_.preference_set(preference, name, &value, sizeof value), operation,
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kLibraryWorkspace));
    // Parts of the depth may be added, but not after they were rounded to 16 bits: sums are f32.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        CUBLASLT_REDUCTION_SCHEME_MASK & ~std::uint32_t{CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, cublas_alignment_of(gemm.b.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, cublas_alignment_of(gemm.a.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, cublas_alignment_of(gemm.c));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, cublas_alignment_of(gemm.c));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status = lib_.heuristic(handle, product, first, second, result, result,
                                                 preference, most, found.data(), &count);
    lib_.preference_destroy(preference);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
    return found;
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;

 private:
  const CublasLt& lib_;
};

}  // namespace twell::cuda
