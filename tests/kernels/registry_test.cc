// A forced tier must run its own kernels: each entry of its table is another function.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/kernel.h"

namespace twell {
namespace {

// All functions of a tier's tables, in their order.
std::vector<void (*)()> functions_of(CpuTier tier, DType x) {
  const auto any = [](auto* function) { return reinterpret_cast<void (*)()>(function); };
  const Kernels& k = kernels_of(tier, x);
  const WeightKernels& w = weight_kernels_of(tier, x, weight_type(x));
  return {any(w.gemm),         any(k.pack),         any(k.screen_row),       any(k.screen_gemm),
          any(w.screen_pack),  any(w.sampled_dots), any(w.weighted_rows),    any(k.round_row),
          any(w.pack_neurons), any(w.pack_inputs),  any(k.multiply_nonzeros)};
}

TEST(Registry, EveryTierHasItsOwnKernels) {
#if defined(__x86_64__)
  for (DType dtype : {DType::bf16, DType::f32}) {
    const auto portable = functions_of(CpuTier::portable, dtype);
    const auto avx2 = functions_of(CpuTier::avx2, dtype);
    const auto avx512 = functions_of(CpuTier::avx512, dtype);
    const auto amx = functions_of(CpuTier::amx, dtype);
    for (std::size_t f = 0; f < portable.size(); ++f) {
      SCOPED_TRACE(f);
      const std::set<void (*)()> own = {portable[f], avx2[f], avx512[f]};
      EXPECT_EQ(own.size(), 3U);
      EXPECT_EQ(own.count(nullptr), 0U);
      // Tiles multiply bf16 and screens; all else is AVX-512.
      constexpr std::size_t kGemm = 0, kScreenGemm = 3;
      EXPECT_EQ(amx[f] != avx512[f], dtype == DType::bf16 && (f == kGemm || f == kScreenGemm));
    }
  }
#else
  for (DType dtype : {DType::bf16, DType::f32}) {  // the portable tier is all there is
    const auto portable = functions_of(CpuTier::portable, dtype);
    for (auto* function : portable) EXPECT_NE(function, nullptr);
    EXPECT_EQ(functions_of(CpuTier::amx, dtype), portable);
  }
#endif
}

}  // namespace
}  // namespace twell
