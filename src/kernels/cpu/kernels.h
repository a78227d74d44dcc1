// The tables of the CPU tiers, and what AMX adds to that of AVX-512.
#pragma once

#include "kernels/kernel.h"

namespace twell {

namespace portable {
extern const Kernels kernels_bf16, kernels_f32;
}
namespace avx2 {
extern const Kernels kernels_bf16, kernels_f32;
}
namespace avx512 {
extern const Kernels kernels_bf16, kernels_f32;
}
namespace amx {
// Up to here a stream through vector registers is bound by memory either way.
constexpr std::int64_t kVectorRows = 4;
constexpr XForm kGemmX = {DType::bf16, kVectorRows + 1};
void gemm(const GemmArgs& args);
// Up to 16 rows vector registers are as fast: 5.5 times a dense layer at one, 3.6 at eight.
constexpr std::int64_t kScreenTilesFrom = 17;
void screen_gemm(const ScreenGemmArgs& args);
}  // namespace amx

}  // namespace twell
