#include <omp.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/check.h"
#include "core/cpu_quota.h"
#include "twell/device.h"

namespace twell {
namespace {

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

int default_threads() {
  const int wanted = omp_get_max_threads();
  if (const char* set = std::getenv("OMP_NUM_THREADS"); set != nullptr && *set != '\0') {
    return wanted;
  }
  const double granted = std::ceil(cpu_quota().value_or(wanted));
  return granted < wanted ? static_cast<int>(granted) : wanted;
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
