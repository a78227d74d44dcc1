// A forced tier must run its own kernels: each table entry is another function.
#include <gtest/gtest.h>

#include <set>

#include "kernels/kernel.h"

namespace twell {
namespace {

TEST(Registry, EveryTierHasItsOwnKernels) {
#if defined(__x86_64__)
  for (DType dtype : {DType::bf16, DType::f32}) {
    std::set<void (*)(const GemmReluTwellArgs&)> gemm;
    std::set<void (*)(const void*, ConstMatrixView, const ActiveNeurons&)> gated;
    for (CpuTier tier : kAllCpuTiers) {
      gemm.insert(gemm_relu_twell_kernel(tier, dtype).run);
      gated.insert(twell_gated_ffn_kernel(tier, dtype).run);
    }
    EXPECT_EQ(gemm.size(), dtype == DType::bf16 ? 4U : 3U);  // AMX multiplies bf16 only
    EXPECT_EQ(gated.size(), 3U);                             // AMX gathers with AVX-512
  }
#else
  GTEST_SKIP() << "only the portable tier on this architecture";
#endif
}

}  // namespace
}  // namespace twell
