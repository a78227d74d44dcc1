// Medians of GPU time.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/common/check.h"

namespace twell::bench {

struct Times {
  double median_us = 0.0;
  double min_us = 0.0;
  double max_us = 0.0;
};

// Runs work captured in CUDA graphs, as an engine would: launch costs stay out of the figures, and
// what cannot be captured fails here. Between runs L2 is overwritten, so that every run meets
// weights as a layer of a model meets them: in device memory.
class Timer {
 public:
  explicit Timer(std::size_t l2_bytes) : flush_bytes_(2 * l2_bytes) {
    TWELL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    TWELL_CUDA_CHECK(cudaEventCreate(&begin_));
    TWELL_CUDA_CHECK(cudaEventCreate(&end_));
    TWELL_CUDA_CHECK(cudaMalloc(&flush_, flush_bytes_));
  }
  ~Timer() {
    (void)cudaFree(flush_);
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
    (void)cudaStreamDestroy(stream_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Of `work`, which enqueues on stream(), over `runs` runs after two that do not count.
  Times measure(int runs, const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    TWELL_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work();
    TWELL_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    TWELL_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<double> us;
    for (int i = 0; i < runs + 2; ++i) {
      TWELL_CUDA_CHECK(cudaMemsetAsync(flush_, i, flush_bytes_, stream_));
      TWELL_CUDA_CHECK(cudaEventRecord(begin_, stream_));
      TWELL_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
      TWELL_CUDA_CHECK(cudaEventRecord(end_, stream_));
      TWELL_CUDA_CHECK(cudaEventSynchronize(end_));
      float milliseconds = 0.0F;
      TWELL_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (i >= 2) us.push_back(1e3 * static_cast<double>(milliseconds));
    }
    TWELL_CUDA_CHECK(cudaGraphExecDestroy(executable));
    TWELL_CUDA_CHECK(cudaGraphDestroy(graph));
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us.front(), us.back()};
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* flush_ = nullptr;
  std::size_t flush_bytes_;
};

}  // namespace twell::bench
