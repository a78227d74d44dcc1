// Sparse or dense: the device's estimate, corrected by what was measured on this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "models/device.h"

namespace twell::lm {

// For layers of one shape on one device. Shared by them, as their corrections are.
class PathChoice {
 public:
  PathChoice(const DeviceRuntime& runtime, const LayerShape& shape)
      : runtime_(runtime), shape_(shape) {}

  // Time of the sparse path by that of the dense one.
  double ratio(std::int64_t rows, double density) const;
  // By how much dense has to be expected faster: at equal times the choice would change from call
  // to call, and the sparse path's estimate is the less certain one.
  static constexpr double kMargin = 1.0;
  bool dense_is_faster(std::int64_t rows, double density) const {
    return ratio(rows, density) > kMargin;
  }
  // The two paths took these times. Between numbers of rows that were measured, the correction is
  // interpolated over their logarithms; beyond them the nearest holds.
  void correct(std::int64_t rows, double density, double sparse_seconds, double dense_seconds);
  bool corrected() const { return !factors_.empty(); }

 private:
  const DeviceRuntime& runtime_;
  LayerShape shape_;
  std::map<double, double> factors_;  // log2(rows) -> log2(measured / estimated ratio)
};

// Seconds of a call on a device: the least of three runs of as many calls as take 2 ms.
double seconds_of(DeviceRuntime& runtime, const std::function<void()>& call);

// The one choice of this shape on this device in the process.
std::shared_ptr<PathChoice> shared_choice(const DeviceRuntime& runtime, const LayerShape& shape);

}  // namespace twell::lm
