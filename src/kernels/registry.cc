// Which functions a tier runs. Adding a tier is a line here, and what it does better than the one
// below it.
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
    for (std::size_t i = 0; i < amx::gemms.size(); ++i) {
      out.bf16.weights[i].gemm = amx::gemms[i];
      // Tiles multiply bf16 four times as fast as vectors multiply integers.
      out.bf16.weights[i].one_term_always = false;
    }
    for (std::size_t i = 0; i < kGgmlFormats; ++i) {
      const amx::GgmlDenseRows& tiles = amx::ggml_dense_rows[i];
      if (tiles.run != nullptr) out.ggml.product[i].dense_rows = tiles.run;
      out.ggml.product[i].most_sparse = tiles.most_sparse;
      out.ggml.product[i].float_rows = amx::ggml_float_rows[i];
    }
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
  return all_of(tier).of(x);
}

const WeightKernels& weight_kernels_of(CpuTier tier, DType x, WeightType weight) {
  TWELL_INVARIANT(x != DType::f16 && goes_with(x, weight));
  return all_of(tier).of(x).weights[static_cast<std::size_t>(weight)];
}

const GgmlKernels& ggml_kernels_of(CpuTier tier) { return all_of(tier).ggml; }

}  // namespace twell
