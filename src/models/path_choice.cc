#include "models/path_choice.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <tuple>

namespace twell::lm {

double PathChoice::ratio(std::int64_t rows, double density) const {
  const double estimate = runtime_.sparse_to_dense(shape_, rows, density);
  if (factors_.empty() || rows < 1) return estimate;
  const double at = std::log2(static_cast<double>(rows));
  const auto above = factors_.lower_bound(at);
  double factor = 0.0;
  if (above == factors_.end()) {
    factor = factors_.rbegin()->second;
  } else if (above == factors_.begin()) {
    factor = above->second;
  } else {
    const auto below = std::prev(above);
    const double share = (at - below->first) / (above->first - below->first);
    factor = below->second + share * (above->second - below->second);
  }
  return estimate * std::exp2(factor);
}

void PathChoice::correct(std::int64_t rows, double density, double sparse_seconds,
                         double dense_seconds) {
  const double estimate = runtime_.sparse_to_dense(shape_, rows, density);
  if (rows < 1 || !(sparse_seconds > 0) || !(dense_seconds > 0) || !(estimate > 0)) return;
  factors_[std::log2(static_cast<double>(rows))] =
      std::log2(sparse_seconds / dense_seconds / estimate);
}

double seconds_of(DeviceRuntime& runtime, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int calls) {
    runtime.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    runtime.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  (void)run(2);
  const double once = std::max(run(1), 1e-7);
  const int calls = static_cast<int>(std::clamp(2e-3 / once, 1.0, 200.0));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) best = std::min(best, run(calls));
  return best;
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
