#include "cli/measure.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/interrupt.h"

namespace twell::cli {
namespace {

double time_us(const std::function<void(std::int64_t)>& side, std::int64_t first,
               std::int64_t calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) side(first + i);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return took.count();
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
  std::vector<Timing> timings(sides.size());
  std::vector<std::int64_t> next(sides.size(), 0);
  for (std::size_t s = 0; s < sides.size(); ++s) {
    check_interrupt();
    // The first calls build oneDNN's primitives and touch pages; the last of the rest tells how
    // many calls fill a run.
    double one = 0;
    double spent = 0;
    while (next[s] < 2 || (spent < options.min_seconds * 0.25e6 && next[s] < 20)) {
      one = time_us(sides[s], next[s], 1);
      spent += one;
      ++next[s];
    }
    timings[s].calls = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::ceil(options.min_seconds * 1e6 / std::max(one, 0.1))));
  }
  for (int r = 0; r < options.repeats; ++r) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      // Odd rounds run backwards: nobody always follows the same neighbour.
      const std::size_t s = r % 2 == 0 ? i : sides.size() - 1 - i;
      check_interrupt();
      Timing& timing = timings[s];
      timing.runs_us.push_back(time_us(sides[s], next[s], timing.calls) /
                               static_cast<double>(timing.calls));
      next[s] += timing.calls;
      if (tick) tick();
    }
  }
  for (Timing& timing : timings) {
    timing.median_us = median(timing.runs_us);
    const auto [low, high] = std::minmax_element(timing.runs_us.begin(), timing.runs_us.end());
    timing.min_us = *low;
    timing.max_us = *high;
  }
  return timings;
}

}  // namespace twell::cli
