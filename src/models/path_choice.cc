#include "models/path_choice.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

namespace twell::lm {
namespace {

// The value at `at` of a map from places to what `value` makes numbers of.
template <class Map, class Value>
double interpolated(const Map& points, double at, const Value& value) {
  const auto above = points.lower_bound(at);
  if (above == points.end()) return value(points.rbegin()->second);
  if (above == points.begin()) return value(above->second);
  const auto below = std::prev(above);
  const double share = (at - below->first) / (above->first - below->first);
  return (1 - share) * value(below->second) + share * value(above->second);
}

}  // namespace

double PathChoice::ratio(std::int64_t rows, double density) const {
  const double estimate = runtime_.sparse_to_dense(shape_, rows, density);
  const std::lock_guard lock(mutex_);
  if (factors_.empty() || rows < 1) return estimate;
  const double factor = interpolated(
      factors_, std::log2(static_cast<double>(rows)), [density](const auto& of_density) {
        return interpolated(of_density, density, [](double power) { return power; });
      });
  return estimate * std::exp2(factor);
}

bool PathChoice::dense_is_faster(std::int64_t rows, double density, bool dense_before) const {
  return ratio(rows, density) > (dense_before ? 1 / kMargin : kMargin);
}

void PathChoice::correct(std::int64_t rows, double density, double sparse_seconds,
                         double dense_seconds) {
  const double estimate = runtime_.sparse_to_dense(shape_, rows, density);
  if (rows < 1 || !(sparse_seconds > 0) || !(dense_seconds > 0) || !(estimate > 0)) return;
  const std::lock_guard lock(mutex_);
  factors_[std::log2(static_cast<double>(rows))][density] =
      std::log2(sparse_seconds / dense_seconds / estimate);
}

double seconds_of(DeviceRuntime& runtime, bool recorded, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRecordedCalls = 8;
  // What is made for the first time is neither to be recorded nor timed.
  call();
  call();
  std::unique_ptr<StepGraph> graph;
  if (recorded) {
    graph = runtime.make_graph();
    graph->capture([&call] {
      for (int i = 0; i < kRecordedCalls; ++i) call();
    });
  }
  const auto run = [&](int times) {
    runtime.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) graph ? graph->replay() : call();
    runtime.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / times;
  };
  (void)run(1);
  const int times = static_cast<int>(std::clamp(2e-3 / std::max(run(1), 1e-7), 1.0, 200.0));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) best = std::min(best, run(times));
  return recorded ? best / kRecordedCalls : best;
}

std::shared_ptr<PathChoice> shared_choice(const DeviceRuntime& runtime, const LayerShape& shape) {
  using Key = std::tuple<const DeviceRuntime*, std::int64_t, std::int64_t, bool, at::ScalarType>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<PathChoice>> choices;
  const std::lock_guard lock(mutex);
  auto& choice = choices[{&runtime, shape.depth, shape.hidden, shape.gated, shape.dtype}];
  if (!choice) choice = std::make_shared<PathChoice>(runtime, shape);
  return choice;
}

}  // namespace twell::lm
