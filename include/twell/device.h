// Which instructions this machine can run. Tiers are ordered: each one's kernels beat the ones
// before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twell {

enum class CpuTier : std::uint8_t {
  portable,  // any CPU: compiler vectors, no intrinsics
  avx2,      // AVX2 and FMA
  avx512,    // AVX-512 F/BW/VL/DQ, VNNI (vpdpbusd) and BF16 (vdpbf16ps)
  amx,       // AMX-TILE, AMX-BF16 and AMX-INT8, with everything of avx512
};

constexpr CpuTier kAllCpuTiers[] = {CpuTier::portable, CpuTier::avx2, CpuTier::avx512,
                                    CpuTier::amx};

const char* name_of(CpuTier tier);

// "portable" | "avx2" | "avx512" | "amx"; anything else is an Error that lists these.
CpuTier parse_cpu_tier(std::string_view name);

// Whether the processor and the operating system both allow the tier's instructions.
bool cpu_tier_available(CpuTier tier);
std::vector<CpuTier> available_cpu_tiers();

// The tier named by the environment variable TWELL_CPU_TIER, or the best available one. A forced
// tier that this machine does not have is an Error, never a silent fallback.
CpuTier default_cpu_tier();

// As the system calls it: "AMD EPYC"; "unknown" where it does not say.
std::string processor_name();

// Threads that the process can keep busy: as many as OpenMP would use, which the cores that it may
// run on bound, and no more than the quota of a container (cgroup, rounded up), beyond which
// threads wait for one another. Where OMP_NUM_THREADS is set, what OpenMP makes of it.
int default_threads();

// Data caches of one core and the share of the last level it sees, in bytes; conservative constants
// where the operating system does not tell.
struct CpuCaches {
  std::int64_t l1 = 32 << 10;
  std::int64_t l2 = 1 << 20;
  std::int64_t l3 = 16 << 20;
};
CpuCaches cpu_caches();

}  // namespace twell
