#include "cuda/bench/timer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cuda/bench/bench_kernels.h"

namespace twell::bench {
namespace {

// Graphs of the stream's work.
class Recording {
 public:
  Recording(cudaStream_t stream, const std::function<void()>& work) {
    TWELL_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      // The stream must serve those that come after.
      (void)cudaStreamEndCapture(stream, &graph_);
      if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
      (void)cudaGetLastError();
      throw;
    }
    TWELL_CUDA_CHECK(cudaStreamEndCapture(stream, &graph_));
    TWELL_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Recording() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void launch(cudaStream_t stream) const { TWELL_CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// Three times L2: its replacement is no strict order of age, and large ones are two halves of which
// each may keep a copy of the other's lines.
constexpr std::size_t kFlushShare = 3;

}  // namespace

Times times_of(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us.front(), us.back()};
}

Timer::Timer(const cuda::Device& device)
    : flush_blocks_(device.sm_count * 8),
      flush_(kFlushShare * device.l2_bytes / sizeof(uint4)),
      sum_(1) {
  TWELL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  TWELL_CUDA_CHECK(cudaEventCreate(&begin_));
  TWELL_CUDA_CHECK(cudaEventCreate(&end_));
}

Timer::~Timer() {
  (void)cudaEventDestroy(begin_);
  (void)cudaEventDestroy(end_);
  (void)cudaStreamDestroy(stream_);
}

// By reading, not by writing: lines that a memset leaves are dirty, and a run that brings its
// weights in would first have to write each of them back, at as many bytes again. That would fall
// on short runs alone, on decoding most of all.
void Timer::flush() {
  launch_read_all({flush_.get(), static_cast<std::int64_t>(flush_.size()), sum_.get()},
                  flush_blocks_, stream_);
}

std::vector<Times> Timer::measure_in_turns(int runs,
                                           const std::vector<std::function<void()>>& works,
                                           Cache cache) {
  std::vector<std::unique_ptr<const Recording>> recordings;
  for (const auto& work : works) {
    // Kernels are loaded when they first run, which a capture may refuse.
    work();
    TWELL_CUDA_CHECK(cudaStreamSynchronize(stream_));
    recordings.push_back(std::make_unique<const Recording>(stream_, work));
  }
  std::vector<std::vector<double>> us(works.size());
  for (int round = 0; round < runs + 2; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      // Odd rounds run backwards: nobody always follows the same neighbour.
      const std::size_t w = round % 2 == 0 ? i : works.size() - 1 - i;
      if (cache == Cache::cold) flush();
      TWELL_CUDA_CHECK(cudaEventRecord(begin_, stream_));
      recordings[w]->launch(stream_);
      TWELL_CUDA_CHECK(cudaEventRecord(end_, stream_));
      TWELL_CUDA_CHECK(cudaEventSynchronize(end_));
      float milliseconds = 0.0F;
      TWELL_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (round >= 2) us[w].push_back(1e3 * static_cast<double>(milliseconds));
    }
  }
  std::vector<Times> out;
  for (std::vector<double>& of_work : us) out.push_back(times_of(std::move(of_work)));
  return out;
}

}  // namespace twell::bench
