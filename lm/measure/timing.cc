#include "measure/timing.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "files/interrupt.h"

namespace twell::lm {
namespace {

using Clock = std::chrono::steady_clock;

// A first call that takes so many runs' least time shows by itself that a run is one call.
constexpr double kLong = 10;
constexpr int kFewest = 3;  // runs, where they are long

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 2047 << 20);
}

std::vector<Timing> measure_in_turns(const std::vector<std::function<void(std::int64_t)>>& sides,
                                     const MeasureOptions& options,
                                     const std::function<void()>& tick) {
  const double least_us = options.min_seconds * 1e6;
  const auto since = [&options](Clock::time_point begin) {
    if (options.settle) options.settle();
    return us_since(begin);
  };
  std::vector<Timing> timings(sides.size());
  std::vector<std::int64_t> next(sides.size(), 0), batch(sides.size(), 1);
  const auto call = [&](std::size_t s) {
    io::check_interrupt();
    if (options.alive) options.alive();
    sides[s](next[s]++);
  };
  for (std::size_t s = 0; s < sides.size(); ++s) {
    // The first calls build oneDNN's primitives and touch pages. Then as many calls between two
    // looks at the clock as take about a tenth of a run.
    const auto first = Clock::now();
    call(s);
    timings[s].first_us = since(first);
    if (timings[s].first_us > kLong * least_us) continue;
    call(s);
    (void)since({});
    const auto begin = Clock::now();
    std::int64_t calls = 0;
    while (calls == 0 || since(begin) < least_us / 8) {
      call(s);
      ++calls;
    }
    batch[s] = std::max<std::int64_t>(1, calls * 8 / 10);
  }
  std::vector<double> more_us(sides.size());
  double longest_us = 0;
  for (int r = 0; r < options.repeats; ++r) {
    if (r >= kFewest && longest_us > options.enough_seconds * 1e6) break;
    for (std::size_t i = 0; i < sides.size(); ++i) {
      // Odd rounds run backwards: nobody always follows the same neighbour.
      const std::size_t s = r % 2 == 0 ? i : sides.size() - 1 - i;
      io::check_interrupt();
      if (options.alive) options.alive();
      if (options.before_run) options.before_run();
      const auto begin = Clock::now();
      std::int64_t calls = 0;
      double took = 0;
      while (took < least_us) {
        for (std::int64_t c = 0; c < batch[s]; ++c) {
          io::check_interrupt();
          sides[s](next[s]++);
        }
        calls += batch[s];
        took = since(begin);
      }
      if (options.after_run) options.after_run(s);
      timings[s].runs_us.push_back(took / static_cast<double>(calls));
      timings[s].calls += calls;
      more_us[s] += took - least_us;
      longest_us = std::max(longest_us, more_us[s]);
      if (tick) tick();
    }
    for (Timing& timing : timings) {
      timing.median_us = median(timing.runs_us);
      const auto [low, high] = std::minmax_element(timing.runs_us.begin(), timing.runs_us.end());
      timing.min_us = *low;
      timing.max_us = *high;
    }
    if (options.after_round) options.after_round(timings);
  }
  return timings;
}

}  // namespace twell::lm
