// In the place of library_gemm.cc where the build has no cublasLt.h: the library is never there.
#include "core/check.h"
#include "cuda/ops/library_gemm.h"
#include "twell/cuda.h"

namespace twell::cuda {

bool library_present() { return false; }

void library_gemm(const char* operation, DType, const LibraryGemm&, void*, cudaStream_t) {
  require(false, operation, "plan", "this build has no cuBLASLt; plan without it");
}

}  // namespace twell::cuda
