// How sparse the feed-forward layers are while training: non-zeros of the activated gate.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "decoder/ffn_totals.h"
#include "train/processes.h"

namespace twell::lm {

// One layer in a group of steps, as logged.
struct LayerActivity {
  double nnz_mean = 0.0;          // per token
  std::int64_t nnz_max = 0;       // of any token
  double dead_fraction = 0.0;     // of H: no activation within the dead window
  double active_fraction = 0.0;   // of H: at least one activation within a micro-batch, mean
  double l1 = 0.0;                // sum over hidden units of |h|, mean over tokens
  std::vector<double> first_nnz;  // mean per token at positions 0, 1, ...
};

// Collects calls between two log lines, and when each neuron fired last.
class ActivityRecorder {
 public:
  static constexpr std::int64_t kFirstPositions = 8;

  // `context`: rows of one sequence in every recorded call.
  ActivityRecorder(std::int64_t layers, std::int64_t neurons, std::int64_t context);

  void record(std::int64_t layer, std::int64_t step, const FfnCounts& counts);
  // Of everything that all processes recorded since the last reset. `step` is the last one
  // recorded.
  std::vector<LayerActivity> summary(std::int64_t step, std::int64_t dead_window,
                                     const Processes& processes = {}) const;
  void reset();  // not the times of last firing
  // Sum of |h| over everything recorded since the last call.
  double take_l1() { return std::exchange(l1_sum_, 0.0); }

  // Neurons without a single activation in steps (step - window, step]; before step `window`, since
  // the beginning.
  std::vector<std::int64_t> dead(std::int64_t layer, std::int64_t step, std::int64_t window) const;
  // [layers * neurons] step of the last activation, -1: never. Part of a checkpoint.
  std::vector<std::int64_t>& last_fired() { return last_fired_; }
  // The last step in which a neuron fired on any of the processes becomes that of all.
  void share_last_fired(const Processes& processes) { processes.maximum(last_fired_); }
  const std::vector<std::int64_t>& last_fired() const { return last_fired_; }

 private:
  std::int64_t neurons_, context_;
  std::vector<FfnTotals> layers_;
  std::vector<std::int64_t> positions_;  // of the rows of a call
  std::vector<std::int64_t> last_fired_;
  double l1_sum_ = 0.0;
};

}  // namespace twell::lm
