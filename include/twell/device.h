// Which instructions this machine can run. A tier is a set of instructions with its own kernels.
// Tiers are ordered: the kernels of each are faster than those of the tiers before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace twell {

// A set of CPU instructions.
enum class CpuTier : std::uint8_t {
  portable,  // any CPU: compiler vectors, no intrinsics
  avx2,      // AVX2, FMA and F16C
  avx512,    // AVX-512 F/BW/VL/DQ, VNNI (vpdpbusd) and BF16 (vdpbf16ps)
  amx,       // AMX-TILE, AMX-BF16 and AMX-INT8, with everything of avx512
};

constexpr CpuTier kAllCpuTiers[] = {CpuTier::portable, CpuTier::avx2, CpuTier::avx512,
                                    CpuTier::amx};

// "portable", "avx2", "avx512" or "amx".
const char* name_of(CpuTier tier);

// The tier of such a name. Any other name is an Error that lists these.
CpuTier parse_cpu_tier(std::string_view name);

// Whether the processor and the operating system both allow the tier's instructions.
bool cpu_tier_available(CpuTier tier);
// Those that are available, in order.
std::vector<CpuTier> available_cpu_tiers();

// The tier that the environment variable TWELL_CPU_TIER names, or the best one that is available. A
// named tier that this machine lacks is an Error, never a silent fallback.
CpuTier default_cpu_tier();

// The processor's name as the system gives it, such as "AMD EPYC"; "unknown" if it gives none.
std::string processor_name();

// Threads that the process can keep busy: OpenMP's number, bounded by the cores that the process
// may run on and by a container's quota (cgroup, rounded up), because more threads would wait for
// one another. If OMP_NUM_THREADS is set, OpenMP alone decides.
int default_threads();

// Data caches of one core, and its share of the last level, in bytes. These constants, which are on
// the safe side, serve if the operating system does not tell.
struct CpuCaches {
  std::int64_t l1 = 32 << 10;
  std::int64_t l2 = 1 << 20;
  std::int64_t l3 = 16 << 20;
};
// The caches of this machine.
CpuCaches cpu_caches();

}  // namespace twell
#pragma GCC visibility pop
