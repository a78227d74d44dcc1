// What the processor and the operating system allow: only x86 has more than the portable tier.
#include "twell/device.h"

#if defined(TWELL_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace twell {
namespace {

struct CpuidResult {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidResult cpuid(unsigned leaf, unsigned subleaf) {
  CpuidResult r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Linux hands out the AMX tile registers on request only, once per process.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  static const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  return granted;
}

bool has_avx2() {
  constexpr unsigned kF16c = 1U << 29;  // clang 14 has no name for it
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         (cpuid(1, 0).ecx & kF16c) != 0;
}

bool has_avx512_bf16() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && (cpuid(7, 1).eax & (1U << 5)) != 0;
}

bool has_amx() {
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24, kInt8 = 1U << 25;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  return (cpuid(7, 0).edx & kAll) == kAll && request_amx_permission();
}

}  // namespace

bool cpu_tier_available(CpuTier tier) {
  switch (tier) {
    case CpuTier::portable:
      return true;
    case CpuTier::avx2:
      return has_avx2();
    case CpuTier::avx512:
      return has_avx512_bf16();
    case CpuTier::amx:
      return has_avx512_bf16() && has_amx();
  }
  return false;
}

}  // namespace twell

#else

bool twell::cpu_tier_available(CpuTier tier) { return tier == CpuTier::portable; }

#endif
