// cuBLASLt's part, played by a loop: products in f32, in the order of the inputs.
#include "cuda/ops/library_gemm.h"

#include <vector>

#include "cuda/kernels/common/element.cuh"
#include "twell/cuda.h"

namespace twell::cuda {
namespace {

template <class T>
void multiply(const LibraryGemm& gemm) {
  const auto value = [](const DeviceMatrix& m, std::int64_t row, std::int64_t col) {
    return T::low(m.data[row * m.stride + col]);
  };
  for (std::int64_t r = 0; r < gemm.rows; ++r) {
    for (std::int64_t c = 0; c < gemm.cols; ++c) {
      const std::int64_t at = r * gemm.c_stride + c;
      float sum = gemm.wide && gemm.adds ? static_cast<float*>(gemm.c)[at] : 0.0F;
      for (std::int64_t k = 0; k < gemm.depth; ++k) {
        sum += (gemm.a_by_depth ? value(gemm.a, k, r) : value(gemm.a, r, k)) *
               (gemm.b_by_depth ? value(gemm.b, k, c) : value(gemm.b, c, k));
      }
      if (gemm.wide) {
        static_cast<float*>(gemm.c)[at] = sum;
      } else {
        static_cast<std::uint16_t*>(gemm.c)[at] =
            static_cast<std::uint16_t>(T::round2(sum, 0.0F) & 0xffffU);
      }
    }
  }
}

}  // namespace

bool library_present() { return emulation::has_library(); }

void library_gemm(const char*, DType dtype, const LibraryGemm& gemm, void*, cudaStream_t) {
  if (dtype == DType::bf16) {
    multiply<Bf16>(gemm);
  } else {
    multiply<F16>(gemm);
  }
}

}  // namespace twell::cuda
