#include "train/activity.h"

#include <algorithm>
#include <numeric>

namespace twell::lm {

ActivityRecorder::ActivityRecorder(std::int64_t layers, std::int64_t hidden_units,
                                   std::int64_t context)
    : hidden_units_(hidden_units),
      context_(context),
      layers_(static_cast<std::size_t>(layers)),
      last_fired_(static_cast<std::size_t>(layers * hidden_units), -1) {
  reset();
}

void ActivityRecorder::reset() {
  const auto positions = static_cast<std::size_t>(std::min(kFirstPositions, context_));
  for (Sums& sums : layers_) {
    sums = Sums{};
    sums.first_nnz.assign(positions, 0);
    sums.first_rows.assign(positions, 0);
  }
}

void ActivityRecorder::record(std::int64_t layer, std::int64_t step, const FfnCallCounts& counts) {
  Sums& sums = layers_[static_cast<std::size_t>(layer)];
  ++sums.calls;
  sums.rows += counts.rows;
  sums.active += counts.active;
  sums.l1 += counts.l1;
  l1_sum_ += counts.l1;
  for (const std::int32_t nnz : counts.row_nnz) {
    sums.nnz += nnz;
    sums.nnz_max = std::max<std::int64_t>(sums.nnz_max, nnz);
  }
  for (std::int64_t begin = 0; begin < counts.rows; begin += context_) {
    for (std::size_t p = 0; p < sums.first_nnz.size(); ++p) {
      const std::int64_t row = begin + static_cast<std::int64_t>(p);
      if (row >= counts.rows) break;
      sums.first_nnz[p] += counts.row_nnz[static_cast<std::size_t>(row)];
      ++sums.first_rows[p];
    }
  }
  std::int64_t* last = last_fired_.data() + layer * hidden_units_;
  for (std::size_t i = 0; i < counts.neuron_nnz.size(); ++i) {
    if (counts.neuron_nnz[i] > 0) last[i] = step;
  }
}

std::vector<std::int64_t> ActivityRecorder::dead(std::int64_t layer, std::int64_t step,
                                                 std::int64_t window) const {
  const std::int64_t* last = last_fired_.data() + layer * hidden_units_;
  const std::int64_t bound = std::max<std::int64_t>(0, step - window + 1);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < hidden_units_; ++i) {
    if (last[i] < bound) out.push_back(i);
  }
  return out;
}

std::vector<LayerActivity> ActivityRecorder::summary(std::int64_t step,
                                                     std::int64_t dead_window) const {
  std::vector<LayerActivity> out;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const Sums& sums = layers_[layer];
    const auto rows = static_cast<double>(std::max<std::int64_t>(1, sums.rows));
    const auto calls = static_cast<double>(std::max<std::int64_t>(1, sums.calls));
    const auto units = static_cast<double>(hidden_units_);
    LayerActivity activity;
    activity.nnz_mean = static_cast<double>(sums.nnz) / rows;
    activity.nnz_max = sums.nnz_max;
    activity.active_fraction = static_cast<double>(sums.active) / calls / units;
    activity.l1 = sums.l1 / rows;
    const auto dead_units = dead(static_cast<std::int64_t>(layer), step, dead_window).size();
    activity.dead_fraction = static_cast<double>(dead_units) / units;
    for (std::size_t p = 0; p < sums.first_nnz.size(); ++p) {
      activity.first_nnz.push_back(
          static_cast<double>(sums.first_nnz[p]) /
          static_cast<double>(std::max<std::int64_t>(1, sums.first_rows[p])));
    }
    out.push_back(std::move(activity));
  }
  return out;
}

}  // namespace twell::lm
