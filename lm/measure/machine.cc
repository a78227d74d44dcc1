#include "measure/machine.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include "twell/device.h"

namespace twell::lm {
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

bool reset_peak_resident_bytes() {
  std::ofstream file("/proc/self/clear_refs");
  file << '5' << std::flush;
  return file.good();
}

std::optional<PeakMemory> peak_memory_of(const std::function<void()>& work) {
  malloc_trim(0);
  if (!reset_peak_resident_bytes()) return std::nullopt;
  const double before = peak_resident_bytes();
  work();
  return PeakMemory{before, peak_resident_bytes()};
}

}  // namespace twell::lm
