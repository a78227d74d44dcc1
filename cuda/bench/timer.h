// Medians of GPU time.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <vector>

#include "cuda/bench/device_memory.h"
#include "twell/cuda.h"

namespace twell::bench {

struct Times {
  double median_us = 0.0;
  double min_us = 0.0;
  double max_us = 0.0;
};
Times times_of(std::vector<double> us);

// What runs meet in L2.
enum class Cache {
  cold,  // nothing: weights lie in device memory, where a layer of a model meets them
  warm,  // what the run before left
};

// Runs work captured in CUDA graphs, as an engine would: launch costs stay out of the figures, and
// what cannot be captured fails here.
class Timer {
 public:
  explicit Timer(const cuda::Device& device);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Of `work`, which enqueues on stream(), over `runs` runs after two that do not count.
  Times measure(int runs, const std::function<void()>& work, Cache cache = Cache::cold) {
    return measure_in_turns(runs, {work}, cache).front();
  }
  // Of several works to be compared, a run of each in turn: a clock that falls or another tenant of
  // the memory meets all of them alike. (The nine GEMMs of dense training took 3,953 to 4,583 µs
  // within one day.) Each may use what those before it in the list wrote in its first call.
  std::vector<Times> measure_in_turns(int runs, const std::vector<std::function<void()>>& works,
                                      Cache cache = Cache::cold);

 private:
  void flush();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  int flush_blocks_;
  DeviceMemory<uint4> flush_;
  DeviceMemory<unsigned> sum_;
};

}  // namespace twell::bench
