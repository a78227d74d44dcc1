#include "layer/scaled_cost.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

namespace twell {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Whether threads of this process lost their cores to others since `before`: some 200 times a
// second of a thread where every core is shared. A few are the system's own, which many threads
// meet in every call.
bool lost_cores(const rusage& before) {
  constexpr double kOwn = 30;  // a second of a thread
  rusage now{};
  getrusage(RUSAGE_SELF, &now);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  const double ran = seconds(now.ru_utime) + seconds(now.ru_stime) - seconds(before.ru_utime) -
                     seconds(before.ru_stime);
  return static_cast<double>(now.ru_nivcsw - before.ru_nivcsw) > kOwn * ran;
}

constexpr int kFewestRuns = 2;  // the first one also touches pages and builds oneDNN's primitives
constexpr int kMostRuns = 5;
// Few tokens are bound by memory, 64 mostly by arithmetic; more of them are timed where that takes
// little time, and where they come.
constexpr std::int64_t kAlways = 64;

// What is known of layers alike.
struct Measured {
  std::vector<LayerTiming> timings;  // of the first of the built-in tokens, in order
  int tries = 4;                     // left to calls that find the machine busy
  Clock::time_point next_try = {};   // not before: all layers of a model come in one busy moment
  Clock::duration pause = std::chrono::milliseconds(500);  // four times as long after each

  bool reaches(std::int64_t tokens) const {
    return !timings.empty() && timings.back().tokens >= tokens;
  }
};

// The tokens of the table that so many rows are nearest to, as the logarithm goes.
std::int64_t order_of(const CostModel& cost, std::int64_t rows) {
  std::int64_t nearest = cost.tokens.front();
  for (const std::int64_t tokens : cost.tokens) {
    if (rows * rows >= nearest * tokens) nearest = tokens;
  }
  return nearest;
}

// Times what is to be known for a call of so many rows and is not yet. `density`: of the layer that
// is timed; those that share the timings have others.
void measure(const CostModel& built_in, std::int64_t wanted, double density,
             const std::function<LayerTiming(std::int64_t tokens)>& time, Measured& measured) {
  constexpr double kLongest = 50e3;  // us
  std::vector<LayerTiming>& timings = measured.timings;
  for (std::size_t t = timings.size(); t < built_in.tokens.size(); ++t) {
    const std::int64_t tokens = built_in.tokens[t];
    const bool optional = tokens > wanted;
    if (optional) {
      const LayerTiming& last = timings.back();
      const double more = static_cast<double>(tokens) / static_cast<double>(last.tokens);
      if (!(kFewestRuns * more * (last.dense_us + last.sparse_us) < kLongest)) break;
    }
    try {
      LayerTiming timing = time(tokens);
      timing.density = density;
      if (!std::isfinite(timing.dense_us + timing.sparse_us)) {  // a busy machine
        if (!optional) {
          --measured.tries;
          measured.next_try = Clock::now() + measured.pause;
          measured.pause *= 4;
        }
        return;
      }
      timings.push_back(timing);
    } catch (const std::exception&) {  // no memory for the dense layer, most likely
      if (!optional) measured.tries = 0;
      return;
    }
  }
}

}  // namespace

LayerTiming time_in_turns(std::int64_t tokens, const std::function<void(std::int64_t)>& dense,
                          const std::function<void(std::int64_t)>& sparse) {
  constexpr double kRun = 1e3, kAll = 50e3;  // us
  struct Side {
    const std::function<void(std::int64_t)>& call;
    std::int64_t calls = 0;
    double best_us = std::numeric_limits<double>::infinity();
  } sides[] = {{dense}, {sparse}};
  const auto start = Clock::now();
  for (int run = 0; run < kMostRuns && (run < kFewestRuns || us_since(start) < kAll); ++run) {
    for (Side& side : sides) {
      // Threads wait for one another several times a call: a call of 1 ms that loses a core takes
      // 20, on one path more often than on the other.
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      const auto begin = Clock::now();
      const std::int64_t before = side.calls;
      double took = 0;
      while (took < kRun) {
        side.call(side.calls++);
        took = us_since(begin);
      }
      if (lost_cores(usage)) continue;
      side.best_us = std::min(side.best_us, took / static_cast<double>(side.calls - before));
    }
  }
  return {tokens, sides[0].best_us, sides[1].best_us};
}

CostModel scaled(const CostModel& built_in, const FfnShape& shape,
                 const std::vector<LayerTiming>& timings) {
  constexpr double kAbsurd = 100;
  // PyTorch without bf16 instructions is 6 times slower against the sparse path than built in.
  constexpr double kFurthest = 10;
  CostModel out = built_in;
  for (const LayerTiming& timing : timings) {
    const double dense = timing.dense_us / built_in.dense_us(timing.tokens, shape);
    const double sparse =
        timing.sparse_us / built_in.sparse_us(timing.tokens, timing.density, shape);
    for (const double factor : {dense, sparse}) {
      if (!(factor > 1 / kAbsurd && factor < kAbsurd)) return built_in;
    }
    out.scales.push_back(
        {timing.tokens, dense, std::clamp(sparse, dense / kFurthest, dense * kFurthest)});
  }
  if (out.scales.empty()) return built_in;
  for (std::size_t t = 0; t < out.tokens.size(); ++t) {
    const CostScale& scale = out.scales[std::min(t, out.scales.size() - 1)];
    out.dense[t] *= scale.dense;
    for (double& figure : out.sparse[t]) figure *= scale.sparse;
  }
  return out;
}

ScaledCost scaled_cost(CpuTier tier, int threads, const LayerKind& layer, double density,
                       std::int64_t rows,
                       const std::function<LayerTiming(std::int64_t tokens)>& time) {
  using Key = std::tuple<CpuTier, int, std::int64_t, std::int64_t, bool, DType,
                         std::array<WeightType, 3>, long>;
  static std::mutex mutex;
  static std::map<Key, Measured> all;
  const std::lock_guard lock(mutex);
  // A factor of both gather and gate holds near the density that it was timed at.
  const long power_of_two = std::lround(std::log2(std::max(density, 1e-3)));
  const FfnShape& shape = layer.shape;
  const Key key{tier,        threads,     shape.width, shape.neurons,
                shape.gated, shape.dtype, layer.types, power_of_two};
  Measured& measured = all[key];
  const CostModel built_in = built_in_cost_model(tier);
  const std::int64_t wanted = std::max(kAlways, order_of(built_in, rows));
  const auto settled = [&] { return measured.tries == 0 || measured.reaches(wanted); };
  if (!settled() && Clock::now() >= measured.next_try) {
    measure(built_in, wanted, density, time, measured);
  }
  // A few of the timings would scale all tokens by the figures of one.
  return {measured.reaches(kAlways) ? scaled(built_in, shape, measured.timings) : built_in,
          settled()};
}

}  // namespace twell
