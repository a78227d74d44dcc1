// Which functions a tier runs. Adding a tier is a line here, and what it does better than the one
// below it.
#include "core/check.h"
#include "kernels/cpu/kernels.h"

namespace twell {
namespace {

#if defined(TWELL_X86)
// Tiles multiply bf16 and int8; all else is AVX-512.
const Kernels& amx_bf16() {
  static const Kernels kernels = [] {
    Kernels out = avx512::kernels_bf16;
    out.x = amx::kGemmX;
    out.gemm = amx::gemm;
    out.x8_tiles_from = amx::kScreenTilesFrom;
    out.screen_gemm = amx::screen_gemm;
    return out;
  }();
  return kernels;
}
#endif

}  // namespace

const Kernels& kernels_of([[maybe_unused]] CpuTier tier, DType dtype) {
  TWELL_INVARIANT(dtype != DType::f16);
  const bool narrow = dtype == DType::bf16;
#if defined(TWELL_X86)
  if (tier == CpuTier::amx && narrow) return amx_bf16();
  if (tier >= CpuTier::avx512) return narrow ? avx512::kernels_bf16 : avx512::kernels_f32;
  if (tier == CpuTier::avx2) return narrow ? avx2::kernels_bf16 : avx2::kernels_f32;
#endif
  return narrow ? portable::kernels_bf16 : portable::kernels_f32;
}

}  // namespace twell
