// Whole steps of training, PyTorch's dense feed-forward layers against those that multiply what
// fires, in turns on the same model, data and optimizer.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/machine.h"
#include "train/trainer.h"

namespace twell::measure {

struct StepSide {
  std::vector<double> seconds;       // of each step
  lm::StepTimes times;               // of all of them
  std::optional<PeakMemory> memory;  // of a step that was not timed; none: not counted here
};

struct StepComparison {
  StepSide dense, sparse;
  double tokens = 0;    // of a step
  double nnz_mean = 0;  // per token, mean over layers

  double speedup() const;  // of the medians
  nlohmann::json to_json() const;
};

// `trainer` has a learning rate of 0 and no L1 term, so that activity stays what it is. `tick` is
// told what was done, 2 repeats + kOtherSteps times.
inline constexpr int kOtherSteps = 4;
StepComparison compare_steps(lm::Trainer& trainer, int repeats,
                             const std::function<void(const std::string&)>& tick);

}  // namespace twell::measure
