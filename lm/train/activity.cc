#include "train/activity.h"

#include <algorithm>
#include <iterator>

namespace twell::lm {
namespace {

// What a summary reads of it.
FfnTotals sum_of_all(const FfnTotals& own, const Processes& processes) {
  FfnTotals out = own;
  std::int64_t counts[] = {own.calls, own.rows, own.nnz, own.active};
  processes.sum(counts);
  out.calls = counts[0];
  out.rows = counts[1];
  out.nnz = counts[2];
  out.active = counts[3];
  processes.maximum({&out.nnz_max, 1});
  processes.sum({&out.l1, 1});
  processes.sum(out.position_rows);
  processes.sum(out.position_nnz);
  return out;
}

}  // namespace

ActivityRecorder::ActivityRecorder(std::int64_t layers, std::int64_t neurons, std::int64_t context)
    : neurons_(neurons),
      context_(context),
      layers_(static_cast<std::size_t>(layers)),
      last_fired_(static_cast<std::size_t>(layers * neurons), -1) {}

void ActivityRecorder::reset() { std::fill(layers_.begin(), layers_.end(), FfnTotals()); }

void ActivityRecorder::record(std::int64_t layer, std::int64_t step, const FfnCounts& counts) {
  positions_.resize(static_cast<std::size_t>(counts.rows()));
  for (std::size_t r = 0; r < positions_.size(); ++r) {
    positions_[r] = static_cast<std::int64_t>(r) % context_;
  }
  layers_[static_cast<std::size_t>(layer)].add(counts, positions_);
  l1_sum_ += counts.l1;
  std::int64_t* last = last_fired_.data() + layer * neurons_;
  for (std::size_t i = 0; i < counts.neuron_nnz.size(); ++i) {
    if (counts.neuron_nnz[i] > 0) last[i] = step;
  }
}

std::vector<std::int64_t> ActivityRecorder::dead(std::int64_t layer, std::int64_t step,
                                                 std::int64_t window) const {
  const std::int64_t* last = last_fired_.data() + layer * neurons_;
  const std::int64_t bound = std::max<std::int64_t>(0, step - window + 1);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < neurons_; ++i) {
    if (last[i] < bound) out.push_back(i);
  }
  return out;
}

std::vector<LayerActivity> ActivityRecorder::summary(std::int64_t step, std::int64_t dead_window,
                                                     const Processes& processes) const {
  std::vector<LayerActivity> out;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const FfnTotals totals = sum_of_all(layers_[layer], processes);
    const auto rows = static_cast<double>(std::max<std::int64_t>(1, totals.rows));
    const auto calls = static_cast<double>(std::max<std::int64_t>(1, totals.calls));
    const auto units = static_cast<double>(neurons_);
    LayerActivity activity;
    activity.nnz_mean = totals.nnz_mean();
    activity.nnz_max = totals.nnz_max;
    activity.active_fraction = static_cast<double>(totals.active) / calls / units;
    activity.l1 = totals.l1 / rows;
    const auto dead_units = dead(static_cast<std::int64_t>(layer), step, dead_window).size();
    activity.dead_fraction = static_cast<double>(dead_units) / units;
    const std::int64_t first = std::min(kFirstPositions, std::ssize(totals.position_rows));
    for (std::size_t p = 0; p < static_cast<std::size_t>(first); ++p) {
      activity.first_nnz.push_back(static_cast<double>(totals.position_nnz[p]) /
                                   static_cast<double>(totals.position_rows[p]));
    }
    out.push_back(std::move(activity));
  }
  return out;
}

}  // namespace twell::lm
