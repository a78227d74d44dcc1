// Dense matrix products by cuBLASLt, which is loaded when it is first needed: libtwell_cuda does
// not depend on it, and takes the version that the process has.
#pragma once

#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// c [rows, cols] = a bᵀ with a [rows, depth] and b [cols, depth]; either may lie the other way
// round.
struct LibraryGemm {
  DeviceMatrix a, b;
  bool a_by_depth = false;  // a is [depth, rows]
  bool b_by_depth = false;  // b is [depth, cols]
  void* c = nullptr;
  std::int64_t c_stride = 0;  // elements
  bool wide = false;          // c is f32; else of the operands' dtype
  bool adds = false;          // to c
  std::int64_t rows = 0, cols = 0, depth = 0;
};

// What a product may use: cuBLAS's own recommendation for Hopper. The emulated one uses none, and
// writing that much for each layer would take longer than small layers.
#ifdef TWELL_CUDA_EMULATED
constexpr std::int64_t kLibraryWorkspace = std::int64_t{64} << 10;
#else
constexpr std::int64_t kLibraryWorkspace = std::int64_t{32} << 20;
#endif

// `workspace` has kLibraryWorkspace bytes. Throws Error{environment} where the library refuses.
void library_gemm(const char* operation, DType dtype, const LibraryGemm& gemm, void* workspace,
                  cudaStream_t stream);

}  // namespace twell::cuda
