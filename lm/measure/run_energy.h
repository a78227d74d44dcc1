// Energy that several ways to do the same work take in their timed runs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "device/nvml.h"
#include "measure/energy.h"
#include "measure/timing.h"

namespace twell::lm {

class RunEnergy {
 public:
  // Of the GPU of this name, as DeviceRuntime::uuid() gives it; of the processor where there is
  // none.
  RunEnergy(const std::string& uuid, std::size_t sides,
            const std::string& library = "libnvidia-ml.so.1");
  // Reads the meter around every timed run of measure_in_turns(), which this has to outlive.
  void watch(MeasureOptions& measure);
  // Joules of all runs of a side; none where there is no meter or a reading failed.
  std::optional<double> joules(std::size_t side) const { return joules_[side]; }
  // "nvml counter", "nvml power samples" or "rapl"; null where there is no meter.
  const char* source() const;

 private:
  void start();
  void stop(std::size_t side);

  std::optional<EnergyMeter> processor_;
  std::optional<GpuEnergyMeter> gpu_;
  std::vector<std::optional<double>> joules_;
};

}  // namespace twell::lm
