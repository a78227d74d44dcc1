// Sparse or dense: the device's estimate, corrected by what was measured on this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "models/device.h"

namespace twell::lm {

// For layers of one shape on one device. Shared by them, as their corrections are; by threads too.
class PathChoice {
 public:
  PathChoice(const DeviceRuntime& runtime, const LayerShape& shape)
      : runtime_(runtime), shape_(shape) {}

  // Time of the sparse path by that of the dense one.
  double ratio(std::int64_t rows, double density) const;
  // The path of the call before stays unless the other one is expected to be this much faster: at
  // equal times the choice would change from call to call, and no estimate is surer.
  static constexpr double kMargin = 1.1;
  bool dense_is_faster(std::int64_t rows, double density, bool dense_before) const;
  // The two paths took these times. Between what was measured, corrections are interpolated over
  // the density and the logarithm of the rows; beyond it the nearest holds.
  void correct(std::int64_t rows, double density, double sparse_seconds, double dense_seconds);
  // Runs `measure`, which corrects, the first time it is called; others wait for it.
  void calibrate_once(const std::function<void()>& measure) {
    std::call_once(calibrated_, measure);
  }

 private:
  const DeviceRuntime& runtime_;
  LayerShape shape_;
  std::once_flag calibrated_;
  mutable std::mutex mutex_;  // of factors_
  // log2(rows) -> density -> log2(measured / estimated ratio)
  std::map<double, std::map<double, double>> factors_;
};

// Seconds of a call on a device: the least of three runs of as many calls as take 2 ms. `recorded`:
// as replays of a recording of several calls, which is how decoding runs a layer.
double seconds_of(DeviceRuntime& runtime, bool recorded, const std::function<void()>& call);

// The one choice of this shape on this device in the process.
std::shared_ptr<PathChoice> shared_choice(const DeviceRuntime& runtime, const LayerShape& shape);

}  // namespace twell::lm
