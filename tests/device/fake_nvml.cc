// A management library of one GPU whose figures are set by the test, by the variables below.
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<int> inits = 0;
std::atomic<unsigned long long> energy_mj = 5'000'000;
std::atomic<unsigned> readings = 0;

bool mode_is(const char* name) {
  const char* mode = std::getenv("FAKE_NVML");
  return mode != nullptr && std::strcmp(mode, name) == 0;
}
constexpr int kNotSupported = 3, kNotFound = 6, kLost = 15;

}  // namespace

extern "C" {
int nvmlInit_v2() {
  ++inits;
  return 0;
}
int nvmlShutdown() {
  --inits;
  return 0;
}
int fake_nvml_inits() { return inits; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-fake") != 0) return kNotFound;
  *device = &inits;
  return 0;
}
// Every reading is 2,500 mJ after the one before.
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* mj) {
  if (!mode_is("counter")) return kNotSupported;
  *mj = energy_mj += 2500;
  return 0;
}
// 100 W and 300 W in turns: 200 W on average, whatever the intervals are equal to.
int nvmlDeviceGetPowerUsage(void*, unsigned* mw) {
  if (mode_is("none")) return kNotSupported;
  const unsigned reading = readings++;
  if (mode_is("lost") && reading > 2) return kLost;
  *mw = reading % 2 == 0 ? 100'000 : 300'000;
  return 0;
}
}
