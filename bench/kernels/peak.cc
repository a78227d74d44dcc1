#include "bench/kernels/peak.h"

#include <cstdint>

#include "bench/kernels/timer.h"

#if defined(TWELL_X86)
#include "kernels/cpu/amx/tile.h"
#endif

namespace twell::bench {
namespace {

#if defined(TWELL_X86)

constexpr std::int64_t kRounds = 200000;

// Sixteen sums, so that none waits for itself. In assembly: g++ 12 would keep them in memory.
#define TWELL_ONE(operation, sum) operation " %%zmm30, %%zmm31, %%zmm" #sum "\n\t"
#define TWELL_FOUR(operation, a, b, c, d) \
  TWELL_ONE(operation, a) TWELL_ONE(operation, b) TWELL_ONE(operation, c) TWELL_ONE(operation, d)
#define TWELL_SIXTEEN(operation)                                                                 \
  asm volatile(TWELL_FOUR(operation, 0, 1, 2, 3) TWELL_FOUR(operation, 4, 5, 6, 7)               \
                   TWELL_FOUR(operation, 8, 9, 10, 11) TWELL_FOUR(operation, 12, 13, 14, 15)     \
               :                                                                                 \
               :                                                                                 \
               : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", \
                 "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15")

template <class Multiply>
double vector_rate(Multiply multiply, double operations) {
  const double seconds = least_seconds([&] {
    for (std::int64_t i = 0; i < kRounds; ++i) multiply();
  });
  return 16 * operations * kRounds / seconds;
}

template <class Multiply>
double tile_rate(Multiply multiply, double operations) {
  amx::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  amx::load_config(config);
  const double seconds = least_seconds([&] {
    for (std::int64_t i = 0; i < kRounds / 4; ++i) {
      multiply.template operator()<0, 4, 6>();
      multiply.template operator()<1, 4, 7>();
      multiply.template operator()<2, 5, 6>();
      multiply.template operator()<3, 5, 7>();
    }
  });
  amx::release();
  return operations * kRounds / seconds;
}

#endif

}  // namespace

#if defined(TWELL_X86)

double peak_bf16(CpuTier tier) {
  if (tier == CpuTier::amx) {
    return tile_rate([]<int C, int A, int B>() { amx::tile_dpbf16<C, A, B>(); }, 2 * 16 * 16 * 32);
  }
  if (tier != CpuTier::avx512) return 0;
  return vector_rate([] { TWELL_SIXTEEN("vdpbf16ps"); }, 2 * 32);
}

double peak_int8(CpuTier tier) {
  if (tier == CpuTier::amx) {
    return tile_rate([]<int C, int A, int B>() { amx::tile_dpbusd<C, A, B>(); }, 2 * 16 * 16 * 64);
  }
  if (tier != CpuTier::avx512) return 0;
  return vector_rate([] { TWELL_SIXTEEN("vpdpbusd"); }, 2 * 64);
}

#else

double peak_bf16(CpuTier) { return 0; }
double peak_int8(CpuTier) { return 0; }

#endif

}  // namespace twell::bench
