// Stands in for the library's own: AMX, whose tiles are emulated, and nothing else but portable.
#include <cstdlib>

#include "twell/device.h"

namespace twell {

bool cpu_tier_available(CpuTier tier) {
  static const bool vectors =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
  return tier == CpuTier::portable || (tier == CpuTier::amx && vectors);
}

}  // namespace twell
