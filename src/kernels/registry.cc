// Which functions a tier runs. Adding a tier is a line here, and what it does better than the one
// below it; adding a type of weights, a case.
#include "core/check.h"
#include "kernels/cpu/kernels.h"

namespace twell {
namespace {

#if defined(TWELL_X86)
// Tiles multiply bf16 and int8; all else is AVX-512.
const TierKernels& amx_kernels() {
  static const TierKernels kernels = [] {
    TierKernels out = avx512::kernels;
    out.bf16.x = amx::kGemmX;
    out.bf16.x8_tiles_from = amx::kScreenTilesFrom;
    out.bf16.screen_gemm = amx::screen_gemm;
    out.bf16_bf16.gemm = amx::gemm;
    out.bf16_int8.gemm = amx::int8_gemm;
    out.bf16_int4.gemm = amx::int4_gemm;
    return out;
  }();
  return kernels;
}
#endif

const TierKernels& all_of([[maybe_unused]] CpuTier tier) {
#if defined(TWELL_X86)
  if (tier == CpuTier::amx) return amx_kernels();
  if (tier == CpuTier::avx512) return avx512::kernels;
  if (tier == CpuTier::avx2) return avx2::kernels;
#endif
  return portable::kernels;
}

}  // namespace

const Kernels& kernels_of(CpuTier tier, DType x) {
  TWELL_INVARIANT(x != DType::f16);
  return x == DType::bf16 ? all_of(tier).bf16 : all_of(tier).f32;
}

const WeightKernels& weight_kernels_of(CpuTier tier, DType x, WeightType weight) {
  const TierKernels& all = all_of(tier);
  TWELL_INVARIANT(x != DType::f16 && goes_with(x, weight));
  switch (weight) {
    case WeightType::bf16:
      return all.bf16_bf16;
    case WeightType::int8:
      return x == DType::bf16 ? all.bf16_int8 : all.f32_int8;
    case WeightType::int4:
      return x == DType::bf16 ? all.bf16_int4 : all.f32_int4;
    default:
      return all.f32_f32;
  }
}

}  // namespace twell
