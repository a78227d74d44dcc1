// The tables of the CPU tiers, and what AMX adds to that of AVX-512.
#pragma once

#include "kernels/kernel.h"

namespace twell {

// All that a tier has: of x, and of x and a weight.
struct TierKernels {
  Kernels bf16, f32;
  WeightKernels bf16_bf16, f32_f32, bf16_int8, f32_int8, bf16_int4, f32_int4;
};

namespace portable {
extern const TierKernels kernels;
}
namespace avx2 {
extern const TierKernels kernels;
}
namespace avx512 {
extern const TierKernels kernels;
}
namespace amx {
// Up to here a stream through vector registers is bound by memory either way.
constexpr std::int64_t kVectorRows = 4;
constexpr XForm kGemmX = {DType::bf16, kVectorRows + 1};
void gemm(const GemmArgs& args);
void int8_gemm(const GemmArgs& args);
void int4_gemm(const GemmArgs& args);
// Up to 16 rows vector registers are as fast: 5.5 times a dense layer at one, 3.6 at eight.
constexpr std::int64_t kScreenTilesFrom = 17;
void screen_gemm(const ScreenGemmArgs& args);
}  // namespace amx

}  // namespace twell
