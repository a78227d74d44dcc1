// Whole steps of training, PyTorch's dense feed-forward layers against those that multiply what
// fires, in turns on the same model, data and optimizer.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace twell::measure {

struct StepSide {
  std::vector<double> seconds;  // of each step
  lm::StepTimes times;          // of all of them
  double peak_bytes = 0;        // of the process, in a step that was not timed
};

struct StepComparison {
  StepSide dense, sparse;
  double tokens = 0;      // of a step
  double base_bytes = 0;  // in use between steps: weights, moments and all else that both need
  double nnz_mean = 0;    // per token, mean over layers

  double speedup() const;  // of the medians
  nlohmann::json to_json() const;
};

// `trainer` has a learning rate of 0 and no L1 term, so that activity stays what it is. `tick` is
// told what was done, 2 repeats + 3 times.
StepComparison compare_steps(lm::Trainer& trainer, int repeats,
                             const std::function<void(const std::string&)>& tick);

}  // namespace twell::measure
