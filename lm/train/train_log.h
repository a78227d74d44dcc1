// The log of a run: JSON lines, one object per group of steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "train/activity.h"

namespace twell::lm {

// Means over the steps of the group, unless noted.
struct LogRecord {
  std::int64_t step = 0;           // number of the last step of the group; 1 is the first of a run
  std::int64_t steps = 0;          // planned
  double loss = 0.0;               // StepResult::loss
  double ce = 0.0;                 // nats a token
  double l1 = 0.0;                 // the L1 term, coefficient included
  double lr = 0.0;                 // of the last step
  double l1_coefficient = 0.0;     // of the last step
  double grad_norm = 0.0;          // before clipping
  std::int64_t tokens = 0;         // since the beginning of the run
  double tokens_per_s = 0.0;       // of the group, without validation and saving
  double seconds = 0.0;            // since this process began
  std::int64_t revived = 0;        // neurons re-initialised in the group
  std::int64_t sparse_layers = 0;  // that multiply only what fires, after the group
  double nnz_mean = 0.0;           // non-zeros of the activated gate per token, mean over layers
  std::vector<LayerActivity> layers;
  std::optional<double> validation_loss;  // after the last step of the group

  // Keys: step, steps, loss, ce, l1, lr, l1_coef, grad_norm, tokens, tokens_per_s, seconds,
  // revived, sparse_layers, nnz_mean, layers[] {nnz_mean, nnz_max, dead_fraction, active_fraction,
  // l1, first_nnz[]} and, where measured, val_loss. One line.
  std::string to_json() const;
};

// Throws Error where the file holds anything but an earlier log.
void check_log(const std::filesystem::path& path);

class TrainLog {
 public:
  // Appends to `path` behind the lines of steps up to `keep_until`; later ones, which a resumed run
  // will write again, and a last line that a killed process left unfinished are removed.
  TrainLog(std::filesystem::path path, std::int64_t keep_until);
  // The line is with the operating system when this returns. Throws Error (environment).
  void write(const LogRecord& record);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace twell::lm
