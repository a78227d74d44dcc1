#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "core/check.h"
#include "twell/device.h"

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

bool has_avx512_bf16() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && (cpuid(7, 1).eax & (1U << 5)) != 0;
}

bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  const unsigned edx = cpuid(7, 0).edx;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && request_amx_permission();
}

std::string list_tiers(const std::vector<CpuTier>& tiers) {
  std::string out;
  for (CpuTier tier : tiers) out += (out.empty() ? "" : ", ") + std::string(name_of(tier));
  return out;
}

}  // namespace

const char* name_of(CpuTier tier) {
  switch (tier) {
    case CpuTier::portable:
      return "portable";
    case CpuTier::avx2:
      return "avx2";
    case CpuTier::avx512:
      return "avx512";
    case CpuTier::amx:
      return "amx";
  }
  return "?";
}

CpuTier parse_cpu_tier(std::string_view name) {
  for (CpuTier tier : kAllCpuTiers) {
    if (name == name_of(tier)) return tier;
  }
  throw Error(ErrorKind::invalid_argument, "cpu tier",
              concat("'", name, "' is not one of portable, avx2, avx512, amx"));
}

bool cpu_tier_available(CpuTier tier) {
  switch (tier) {
    case CpuTier::portable:
      return true;
    case CpuTier::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuTier::avx512:
      return has_avx512_bf16();
    case CpuTier::amx:
      return has_avx512_bf16() && has_amx_bf16();
  }
  return false;
}

std::vector<CpuTier> available_cpu_tiers() {
  std::vector<CpuTier> out;
  for (CpuTier tier : kAllCpuTiers) {
    if (cpu_tier_available(tier)) out.push_back(tier);
  }
  return out;
}

CpuTier default_cpu_tier() {
  const std::vector<CpuTier> available = available_cpu_tiers();
  const char* forced = std::getenv("TWELL_CPU_TIER");
  if (forced == nullptr || *forced == '\0') return available.back();
  const CpuTier tier = parse_cpu_tier(forced);
  if (!cpu_tier_available(tier)) {
    throw Error(ErrorKind::unsupported, "TWELL_CPU_TIER",
                concat("'", forced, "' is not available on this machine, which has ",
                       list_tiers(available)));
  }
  return tier;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

CpuCaches cpu_caches() {
  CpuCaches caches;
  const auto update = [](std::int64_t& value, int name) {
    const long told = sysconf(name);
    if (told > 0) value = told;
  };
  update(caches.l1, _SC_LEVEL1_DCACHE_SIZE);
  update(caches.l2, _SC_LEVEL2_CACHE_SIZE);
  update(caches.l3, _SC_LEVEL3_CACHE_SIZE);
  return caches;
}

}  // namespace twell
