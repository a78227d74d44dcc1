#include "cuda/ops/library_gemm.h"

#include <array>
#include <map>
#include <mutex>

#include "core/check.h"
#include "cuda/kernels/common/check.h"
#include "cuda/ops/cublas_product.h"
#include "twell/cuda.h"

namespace twell::cuda {
namespace {

cublasLtMatmulAlgo_t ask_for_algorithm(const char* operation, cublasLtHandle_t handle,
                                       const LibraryGemm& gemm, const CublasProduct& described) {
  const auto found = described.proposals(operation, handle, gemm, 1);
  if (found.empty()) {
    throw Error(ErrorKind::environment, concat("twell::", operation),
                concat("cuBLASLt knows no way to multiply [", gemm.rows, ", ", gemm.depth, "] by [",
                       gemm.depth, ", ", gemm.cols, "]"));
  }
  return found.front().algo;
}

// One for each device; made outside of what a stream captures.
cublasLtHandle_t handle_of(const char* operation, int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) {
    auto mode = cudaStreamCaptureModeRelaxed;
    TWELL_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cublasStatus_t status = cublas_lt().create(&handle);
    TWELL_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    check_cublas(status, operation, "cublasLtCreate");
  }
  return handle;
}

}  // namespace

bool library_present() { return cublas_lt().complete; }

void library_gemm(const char* operation, DType dtype, const LibraryGemm& gemm, void* workspace,
                  cudaStream_t stream) {
  require(library_present(), operation, "plan",
          "libcublasLt.so is not to be found; install it, or plan without it");
  int device = 0;
  TWELL_CUDA_CHECK(cudaGetDevice(&device));
  cublasLtHandle_t handle = handle_of(operation, device);
  const CublasProduct described(operation, dtype, gemm);

  // Asking takes the library some 30 µs: once for each product that differs in what the answer
  // depends on. A server's prompts have many lengths: old answers go when there are too many.
  using Key = std::array<std::int64_t, 13>;
  static std::mutex mutex;
  static std::map<Key, cublasLtMatmulAlgo_t> known;
  constexpr std::size_t kMostKnown = 4096;
  const Key key = {device,
                   static_cast<std::int64_t>(dtype),
                   gemm.wide,
                   gemm.a_by_depth,
                   gemm.b_by_depth,
                   gemm.rows,
                   gemm.cols,
                   gemm.depth,
                   gemm.a.stride,
                   gemm.b.stride,
                   gemm.c_stride,
                   cublas_alignment_of(gemm.a.data) * 512 + cublas_alignment_of(gemm.b.data),
                   cublas_alignment_of(gemm.c)};
  cublasLtMatmulAlgo_t algorithm;
  {
    const std::lock_guard lock(mutex);
    if (known.size() >= kMostKnown) known.clear();
    auto found = known.find(key);
    if (found == known.end()) {
      found = known.emplace(key, ask_for_algorithm(operation, handle, gemm, described)).first;
    }
    algorithm = found->second;
  }
  const float one = 1.0F;
  const float before = gemm.adds ? 1.0F : 0.0F;
  check_cublas(cublas_lt().matmul(handle, described.product, &one, gemm.b.data, described.first,
                                  gemm.a.data, described.second, &before, gemm.c, described.result,
                                  gemm.c, described.result, &algorithm, workspace,
                                  static_cast<std::size_t>(kLibraryWorkspace), stream),
               operation, "cublasLtMatmul");
}

}  // namespace twell::cuda
