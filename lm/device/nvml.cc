#include "device/nvml.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace twell::lm {
namespace {

using Clock = std::chrono::steady_clock;
using Device = void*;  // nvmlDevice_t
constexpr int kSuccess = 0;
constexpr auto kInterval = std::chrono::milliseconds(10);

// The functions that are used, of NVML's stable C interface.
struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*energy)(Device, unsigned long long*) = nullptr;  // mJ; may be absent
  int (*power)(Device, unsigned*) = nullptr;             // mW; may be absent

  template <class F>
  void find(F*& function, const char* name) const {
    function = reinterpret_cast<F*>(dlsym(library, name));  // NOLINT: as POSIX has it
  }
  bool load(const std::string& file) {
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(by_uuid, "nvmlDeviceGetHandleByUUID");
    find(energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(power, "nvmlDeviceGetPowerUsage");
    return init != nullptr && shutdown != nullptr && by_uuid != nullptr;
  }
};

}  // namespace

struct GpuEnergyMeter::State {
  ~State() {
    stop();
    if (initialised) nvml.shutdown();
    if (nvml.library != nullptr) dlclose(nvml.library);
  }

  std::optional<double> counter_mj() const {
    unsigned long long value = 0;
    if (nvml.energy == nullptr || nvml.energy(device, &value) != kSuccess) return std::nullopt;
    return static_cast<double>(value);
  }
  std::optional<double> power_mw() const {
    unsigned value = 0;
    if (nvml.power == nullptr || nvml.power(device, &value) != kSuccess) return std::nullopt;
    return static_cast<double>(value);
  }

  // One sample; its part of the sum reaches back to the sample before.
  void sample() {
    const auto now = Clock::now();
    const auto mw = power_mw();
    if (!mw) {
      failed = true;
      return;
    }
    if (last_mw) {
      const double seconds = std::chrono::duration<double>(now - last_time).count();
      sum_mj += seconds * (*mw + *last_mw) / 2;
    }
    last_mw = mw;
    last_time = now;
  }
  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      sample();
      wake.wait_for(lock, kInterval, [this] { return stopping; });
    }
    sample();
  }
  void stop() {
    if (!sampler.joinable()) return;
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    sampler.join();
  }

  Nvml nvml;
  bool initialised = false;
  Device device = nullptr;
  bool by_counter = false;
  std::optional<double> begin_mj;

  std::thread sampler;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false, failed = false;
  double sum_mj = 0;
  std::optional<double> last_mw;
  Clock::time_point last_time;
};

GpuEnergyMeter::GpuEnergyMeter(const std::string& uuid, const std::string& library) {
  auto state = std::make_unique<State>();
  if (!state->nvml.load(library) || state->nvml.init() != kSuccess) return;
  state->initialised = true;
  if (state->nvml.by_uuid(uuid.c_str(), &state->device) != kSuccess) return;
  state->by_counter = state->counter_mj().has_value();
  if (!state->by_counter && !state->power_mw()) return;
  state_ = std::move(state);
}

GpuEnergyMeter::~GpuEnergyMeter() = default;

bool GpuEnergyMeter::counts() const { return state_ != nullptr && state_->by_counter; }

void GpuEnergyMeter::start() {
  if (state_ == nullptr) return;
  State& s = *state_;
  if (s.by_counter) {
    s.begin_mj = s.counter_mj();
    return;
  }
  s.stop();
  s.stopping = s.failed = false;
  s.sum_mj = 0;
  s.last_mw.reset();
  s.sampler = std::thread([&s] { s.run(); });
}

std::optional<double> GpuEnergyMeter::joules() {
  if (state_ == nullptr) return std::nullopt;
  State& s = *state_;
  if (s.by_counter) {
    const auto now = s.counter_mj();
    if (!now || !s.begin_mj) return std::nullopt;
    return (*now - *s.begin_mj) / 1e3;
  }
  if (!s.sampler.joinable()) return std::nullopt;
  s.stop();
  if (s.failed) return std::nullopt;
  return s.sum_mj / 1e3;
}

}  // namespace twell::lm
