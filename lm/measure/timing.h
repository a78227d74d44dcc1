// Timing of several ways to do the same work, in turns, so that what else the machine does meets
// all of them alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace twell::lm {

struct Timing;
struct MeasureOptions {
  int repeats = 7;           // timed runs of each side; medians are reported
  double min_seconds = 0.2;  // of one run: as many calls as that takes
  // Where one call is longer: once those of a side have had so many seconds more than they were to
  // have, three runs have to do.
  double enough_seconds = 60;
  // Waits for work that calls only enqueue; called before every look at the clock.
  std::function<void()> settle = {};
  // Between calls, for whoever shows that work goes on.
  std::function<void()> alive = {};
  // Around every timed run of a side, outside of its time.
  std::function<void()> before_run = {};
  std::function<void(std::size_t side)> after_run = {};
  // After every round, in which each side has run once, with the figures so far.
  std::function<void(const std::vector<Timing>&)> after_round = {};
};

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;  // of one call
  double first_us = 0;          // of the very first call, which makes what stays: not in the others
  std::vector<double> runs_us;  // in order: one a repeat, or fewer where they are long
  std::int64_t calls = 0;       // in all runs
};

// Each side is called with a running number, so that it can rotate its inputs; first once or more
// unmeasured. `tick`, if given, is called after every run. Throws Interrupted after Ctrl-C. All
// sides have equally many runs.
std::vector<Timing> measure_in_turns(const std::vector<std::function<void(std::int64_t)>>& sides,
                                     const MeasureOptions& options,
                                     const std::function<void()>& tick = {});

double median(std::vector<double> values);

// Keeps freed memory in the process: else the allocator of the C library gives every large output
// back to the system and PyTorch pays for new pages in every call, which is not what is measured.
void keep_freed_memory();

}  // namespace twell::lm
