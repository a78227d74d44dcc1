#pragma once

#include <algorithm>
#include <chrono>

namespace twell::bench {

inline int runs = 7;

// The shortest of `runs`: what other work on the machine adds is not the kernel's.
template <class F>
double least_seconds(F f) {
  using Clock = std::chrono::steady_clock;
  double least = 1e9;
  f();
  for (int run = 0; run < runs; ++run) {
    const auto start = Clock::now();
    f();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return least;
}

}  // namespace twell::bench
