// Energy of an NVIDIA GPU by its driver's management library, loaded when it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace twell::lm {

// The GPU's own energy counter (Volta and later), or, where it has none, its power sampled every
// 10 ms and summed by the trapezoidal rule.
class GpuEnergyMeter {
 public:
  // `uuid` as NVML has it, "GPU-…". Where the library, the GPU or both figures are missing, the
  // meter is not available.
  explicit GpuEnergyMeter(const std::string& uuid,
                          const std::string& library = "libnvidia-ml.so.1");
  ~GpuEnergyMeter();
  GpuEnergyMeter(const GpuEnergyMeter&) = delete;
  GpuEnergyMeter& operator=(const GpuEnergyMeter&) = delete;

  bool available() const { return state_ != nullptr; }
  bool counts() const;  // by the counter, not by samples
  void start();
  // Joules since start(), once for each; none where a reading failed.
  std::optional<double> joules();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace twell::lm
