#include "measure/machine.h"

#include <fstream>
#include <string>

#include "twell/device.h"

namespace twell::measure {
namespace {

// The value of "KEY:   1234 kB" in a file of /proc, in bytes.
double kilobytes_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

nlohmann::json machine_json(int threads) {
  const CpuCaches caches = cpu_caches();
  return {{"processor", processor_name()},
          {"threads", threads},
          {"cpu_tier", name_of(default_cpu_tier())},
          {"l1_bytes", caches.l1},
          {"l2_bytes", caches.l2},
          {"l3_bytes", caches.l3}};
}

double peak_resident_bytes() { return kilobytes_of("/proc/self/status", "VmHWM"); }

void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << '5'; }

}  // namespace twell::measure
