#include "twell/tuning.h"

#include "core/check.h"

namespace twell {
namespace {

// Two cores of a Zen 5 with AVX-512-BF16 and 1 MiB of L2 each, D = 2048, H = 5632 (bench/results).
// dense: PyTorch's fastest variant. screen_limit: the screen's GEMM multiplies twice as many inputs
// a second as vdpbf16ps. hot_share: to multiply a neuron's two rows takes 19 ns. A Zen 4 takes 37,
// and 180 to gather them: 0.15 was the best of 0.11, 0.15 and 0.20 there, by up to 9 %.
constexpr TierTuning kAvx512 = {
    .tier = CpuTier::avx512,
    .hot_share = 0.15,
    .screen_limit = 0.08,
    .block_l2_share = 0.75,
    .block_rows = 1024,
    .gemm_l2_share = 0,
    .gather_columns = 0,
    .cost = {.dense = {0.100, 0.150, 0.515, 3.55},
             .sparse = {{{0.0060, 0.0080, 0.0112, 0.0222, 0.0300, 0.0414, 0.0689, 0.164},
                         {0.0150, 0.0250, 0.0490, 0.0850, 0.1295, 0.1600, 0.2430, 0.335},
                         {0.0840, 0.1500, 0.2480, 0.3000, 0.4474, 0.5610, 0.6338, 0.830},
                         {0.6500, 1.0300, 1.5300, 2.1000, 2.6000, 3.2500, 3.5000, 4.300}}}}};

// The same machine held to AVX2: screen_limit measured, hot_share from the ratio of its GEMM to
// that of AVX-512. The cost is that of AVX-512: without BF16 instructions PyTorch's dense layers
// fall behind further than the sparse ones.
constexpr TierTuning kAvx2 = {.tier = CpuTier::avx2,
                              .hot_share = 0.4,
                              .screen_limit = 0.25,
                              .block_l2_share = 0.75,
                              .block_rows = 1024,
                              .gemm_l2_share = 0,
                              .gather_columns = 0,
                              .cost = kAvx512.cost};

// hot_share estimated. The cost is that of AVX-512 with its packed gate.
constexpr TierTuning kPortable = {
    .tier = CpuTier::portable,
    .hot_share = 0.5,
    .screen_limit = 0,
    .block_l2_share = 0.75,
    .block_rows = 1024,
    .gemm_l2_share = 0,
    .gather_columns = 0,
    .cost = {.dense = kAvx512.cost.dense,
             .sparse = {{{0.0125, 0.0125, 0.0134, 0.0197, 0.0300, 0.0409, 0.0588, 0.119},
                         {0.0350, 0.0350, 0.0580, 0.0835, 0.1095, 0.1600, 0.2177, 0.308},
                         {0.1474, 0.1717, 0.2480, 0.2950, 0.4474, 0.5610, 0.6338, 0.830},
                         {1.2000, 1.4500, 1.8000, 2.1000, 2.6000, 3.2500, 3.5000, 4.300}}}}};

// Two cores of a Sapphire Rapids, 2 MiB of L2 each, the same layer: dense, and 1 and 8 tokens up to
// a density of 0.02, were measured there; all else follows from rates that were
// (docs/decisions.md). screen_limit: with many tokens a screen is less work up to 4 %, with one up
// to 20 %; at 8 % a layer takes a fifth more time with many and two fifths less with one.
// hot_share: 10 of 170 ns.
constexpr TierTuning kAmx = {
    .tier = CpuTier::amx,
    .hot_share = 0.06,
    .screen_limit = 0.08,
    .block_l2_share = 0.75,
    .block_rows = 1024,
    .gemm_l2_share = 1,
    .gather_columns = 256,
    .cost = {.dense = {0.127, 0.129, 0.232, 1.22},
             .sparse = {{{0.0215, 0.0230, 0.0258, 0.0422, 0.0480, 0.0560, 0.0730, 0.124},
                         {0.0330, 0.0359, 0.0538, 0.0700, 0.0900, 0.1120, 0.1240, 0.128},
                         {0.0260, 0.0515, 0.0965, 0.1300, 0.1630, 0.1800, 0.2100, 0.240},
                         {0.1850, 0.3570, 0.6260, 0.8050, 1.0700, 1.1900, 1.2500, 1.570}}}}};

}  // namespace

const TierTuning& tuning_of(CpuTier tier) {
  for (const TierTuning* tuning : {&kPortable, &kAvx2, &kAvx512, &kAmx}) {
    if (tuning->tier == tier) return *tuning;
  }
  TWELL_INVARIANT(false);
}

}  // namespace twell
