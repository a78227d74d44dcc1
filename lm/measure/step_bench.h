// Whole steps of training, PyTorch's dense feed-forward layers against those that multiply what
// fires, and against PyTorch eager, in turns on the same weights and data.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/eager_training.h"
#include "measure/machine.h"
#include "train/trainer.h"

namespace twell::lm {

struct StepSide {
  std::string name;                // "sparse", "dense", "PyTorch eager"
  std::int64_t micro_batch = 0;    // windows of a pass
  std::vector<double> seconds;     // of a step, one a timed run
  std::int64_t steps = 0;          // in all runs
  std::optional<StepTimes> times;  // of all of them; on a CPU, and not of eager
  // Of a step that was not timed; none: not counted here. Without what only the other side has.
  std::optional<PeakMemory> memory;
  std::optional<double> joules;  // of all steps
};

struct StepComparison {
  StepSide dense, sparse;
  std::optional<StepSide> eager;
  double tokens = 0;                    // of a step
  double nnz_mean = 0;                  // per token, mean over layers
  const char* energy_source = nullptr;  // as RunEnergy::source()

  std::vector<const StepSide*> sides() const;      // sparse, dense and eager, if there is one
  double over_sparse(const StepSide& side) const;  // of the medians
  nlohmann::json to_json() const;
};

struct StepOptions {
  int repeats = 3;
  // Passes of as many windows as fit into the memory, of each side for itself: the largest power of
  // two that divides the windows of a step. Otherwise as the recipe says.
  bool fit = false;
};

// `trainer` has a learning rate of 0 and no L1 term, so that activity stays what it is. `eager`:
// on the same trainer; null: not compared. `tick` is told what was done, of so many things;
// `round`, if given, of what is measured so far whenever every side has run once more.
std::int64_t ticks(const StepOptions& options, bool eager);
StepComparison compare_steps(Trainer& trainer, EagerTraining* eager, const StepOptions& options,
                             const std::function<void(const std::string&)>& tick,
                             const std::function<void(const StepComparison&)>& round = {});

}  // namespace twell::lm
