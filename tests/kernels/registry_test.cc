// Each table of the registry: a tier's own kernels, and where it has none those of the next tier
// down.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cpu/kernels.h"

namespace twell {
namespace {

using Kernels = std::array<const void*, 2>;  // for bf16 and f32; null: none
using Tiers = std::array<Kernels, std::size(kAllCpuTiers)>;

struct Operation {
  const char* name;
  const void* (*choose)(CpuTier, DType);
  Tiers own;
};

template <auto kernel>
const void* choose(CpuTier tier, DType dtype) {
  return &kernel(tier, dtype);
}

#define TWELL_OWN(tier, name) \
  Kernels { &tier::name##_bf16, &tier::name##_f32 }
#if defined(__x86_64__)
#define TWELL_TIERS(name, ...)                                                           \
  Tiers {                                                                                \
    TWELL_OWN(portable, name), TWELL_OWN(avx2, name), TWELL_OWN(avx512, name), Kernels { \
      __VA_ARGS__                                                                        \
    }                                                                                    \
  }
#else
#define TWELL_TIERS(name, ...) \
  Tiers { TWELL_OWN(portable, name) }
#endif

// AMX has bf16 alone, and of two operations.
const Operation kOperations[] = {
    {"gemm_relu_twell", choose<gemm_relu_twell_kernel>,
     TWELL_TIERS(gemm_relu_twell, &amx::gemm_relu_twell_bf16)},
    {"screened_gate", choose<screened_gate_kernel>, TWELL_TIERS(screened_gate)},
    {"gemm", choose<gemm_kernel>, TWELL_TIERS(gemm, &amx::gemm_bf16)},
    {"chosen_rows", choose<chosen_rows_kernel>, TWELL_TIERS(chosen_rows)},
    {"twell_gated_ffn", choose<twell_gated_ffn_kernel>, TWELL_TIERS(twell_gated_ffn)},
    {"twell_spmm", choose<twell_spmm_kernel>, TWELL_TIERS(twell_spmm)},
};

TEST(Registry, EveryTierHasTheBestKernelsThatItMayRun) {
  for (const Operation& operation : kOperations) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const void* best = nullptr;
      for (const CpuTier tier : kAllCpuTiers) {  // ascending
        const void* own = operation.own[static_cast<int>(tier)][dtype == DType::f32];
        if (own != nullptr) best = own;
        EXPECT_EQ(operation.choose(tier, dtype), best)
            << operation.name << " of " << name_of(dtype) << " on " << name_of(tier);
      }
    }
  }
}

}  // namespace
}  // namespace twell
