#pragma once

#include <algorithm>
#include <chrono>

namespace twell::bench {

// The shortest of some runs: what other work on the machine adds is not the kernel's.
template <class F>
double least_seconds(F f) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 7;
  double least = 1e9;
  f();
  for (int run = 0; run < kRuns; ++run) {
    const auto start = Clock::now();
    f();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return least;
}

}  // namespace twell::bench
