// What the two paths of a layer cost on this machine, by tokens and density.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/calibration.h"
#include "measure/timing.h"

namespace twell::lm {

// Measures a layer of this shape at the tokens and densities of FfnCostTable. `tick` is called
// calibration_steps() times with what was measured.
CostModel calibrate(const FfnShape& shape, const MeasureOptions& options,
                    const std::function<void(const std::string&)>& tick);
std::int64_t calibration_steps();

}  // namespace twell::lm
