// device/device.h on an NVIDIA GPU, by PyTorch's CUDA half.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>

#include "device/device.h"
#include "twell/cuda_train.h"

namespace twell::lm {
namespace {

// PyTorch's graph: captured on a stream and with a memory pool apart, so that what the step
// allocates keeps its addresses.
class CudaGraph final : public StepGraph {
 public:
  // All recordings share both: libraries keep a workspace for each stream they meet, and a pool
  // keeps what its recordings took. Nothing that a step allocates outlives a replay, and replays
  // follow one another on the device's one stream.
  CudaGraph(at::Device device, const c10::cuda::CUDAStream& side, c10::MempoolId_t pool)
      : device_(device), side_(side), pool_(pool) {}

  void capture(const std::function<void()>& step) override {
    const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream(device_.index());
    before.synchronize();
    const c10::cuda::CUDAStreamGuard guard(side_);
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      step();
    } catch (...) {
      // Ends the recording; what it has so far is of no use. The end of one that has become invalid
      // does not reach the allocators, and the pool would be taken for one in use.
      attempt([this] { graph_.capture_end(); });
      attempt(
          [this] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_); });
      attempt([this] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
      throw;
    }
    graph_.capture_end();
  }
  c10::MempoolId_t pool() { return graph_.pool(); }
  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  // For cleaning up after an error, whose own errors are of no use.
  template <class Action>
  static void attempt(const Action& action) {
    try {
      action();
    } catch (const std::exception&) {
      (void)cudaGetLastError();
    }
  }

  at::Device device_;
  c10::cuda::CUDAStream side_;
  c10::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

class CudaMarker final : public Marker {
 public:
  explicit CudaMarker(at::Device device) : device_(device) {}
  void set() override { event_.record(c10::cuda::getCurrentCUDAStream(device_.index())); }
  bool reached() override { return event_.query(); }

 private:
  at::Device device_;
  at::cuda::CUDAEvent event_;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int ordinal)
      : device_(at::kCUDA, static_cast<at::DeviceIndex>(ordinal)), figures_(cuda::device(ordinal)) {
    c10::cuda::set_device(device_.index());
    cudaDeviceProp properties = {};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
    std::array<char, 48> text{};
    const auto* b = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);  // NOLINT
    std::snprintf(text.data(), text.size(),
                  "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                  b[14], b[15]);
    uuid_ = text.data();
    // cuDNN's attention compiles its kernels by NVRTC, which PyTorch need not be installed with.
    at::globalContext().setSDPUseCuDNN(false);
  }

  std::string describe() const override { return figures_.name; }
  void synchronize() override { c10::cuda::getCurrentCUDAStream(device_.index()).synchronize(); }
  std::unique_ptr<StepGraph> make_graph() override {
    std::call_once(anchored_, [this] {
      side_ = c10::cuda::getStreamFromPool(false, device_.index());
      anchor_value_ = at::zeros({1}, at::TensorOptions(device_));
      anchor_ = std::make_unique<CudaGraph>(device_, *side_, c10::MempoolId_t{0, 0});
      anchor_->capture([this] { anchor_value_.zero_(); });
    });
    return std::make_unique<CudaGraph>(device_, *side_, anchor_->pool());
  }
  std::unique_ptr<Marker> make_marker() override { return std::make_unique<CudaMarker>(device_); }
  bool capturing() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(
        cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device_.index()), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  at::Tensor host_buffer(std::int64_t elements, at::ScalarType dtype) override {
    return at::zeros({elements}, at::TensorOptions(dtype).pinned_memory(true));
  }
  std::int64_t peak_bytes() override { return stats().peak; }
  void reset_peak_bytes() override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
  }
  std::int64_t free_bytes() override {
    std::size_t free = 0, all = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &all));
    // What PyTorch's allocator holds without using it is free as well.
    const auto kept = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return static_cast<std::int64_t>(free) + kept.reserved_bytes[kAll].current -
           kept.allocated_bytes[kAll].current;
  }
  std::string uuid() const override { return uuid_; }
  CostModel estimated_cost(const FfnShape& shape) const override {
    CostModel cost;
    cost.gated = shape.gated;
    cost.tokens = {1, 8, 32, 128, 512, 2048};
    cost.densities = {0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1};
    const double per_weight = 1e9 / static_cast<double>(shape.width * shape.neurons);
    for (const std::int64_t rows : cost.tokens) {
      auto& sparse = cost.sparse.emplace_back();
      for (const double density : cost.densities) {
        const cuda::FfnCost seconds = cuda::estimate_ffn(figures_, problem(shape, rows), density);
        sparse.push_back(seconds.sparse() * per_weight);
        if (density == 0) cost.dense.push_back(seconds.dense * per_weight);
      }
    }
    return cost;
  }
  HotChoice choose_hot(const FfnShape& shape, std::int64_t rows,
                       const std::vector<double>& rates) const override {
    cuda::Problem call = problem(shape, rows);
    call.hot = cuda::choose_hot(figures_, call, rates);
    if (call.hot == 0) return {};
    const double density =
        std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
    const double seconds = cuda::estimate_ffn(figures_, call, rates).sparse();
    const double even = cuda::estimate_ffn(figures_, call, std::min(density, 1.0)).sparse();
    return {call.hot, std::min(seconds / even, 1.0)};
  }
  TrainingChoice choose_training(const FfnShape& shape, std::int64_t rows,
                                 const std::vector<double>& rates) const override {
    if (shape.dtype == DType::f32) return {};
    const auto hot = cuda::choose_training(figures_, problem(shape, rows), rates);
    return hot ? TrainingChoice{true, *hot} : TrainingChoice{};
  }
  double candidates_limit(const FfnShape& shape, std::int64_t rows) const override {
    const cuda::Problem call = problem(shape, rows);
    const double limit = cuda::candidates_limit(figures_, call);
    // The operators' plans expect the share that a problem has unless told.
    return limit < call.candidates ? 0.0 : limit;
  }
  std::string explain_ffn(const FfnShape& shape, GateForm gate, std::int64_t rows,
                          std::int64_t hot) const override {
    cuda::Problem call = problem(shape, rows);
    call.hot = hot;
    call.screened = gate == GateForm::screened;
    return cuda::plan_ffn(figures_, call).to_string();
  }

 private:
  static cuda::Problem problem(const FfnShape& shape, std::int64_t rows) {
    cuda::Problem call{rows,        shape.width, shape.neurons,
                       shape.dtype, shape.gated, shape.width % cuda::kVector == 0};
    call.joined = shape.gated;  // gate and up lie in one matrix
    return call;
  }
  c10::CachingAllocator::Stat stats() const {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index())
        .allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  }

  at::Device device_;
  cuda::Device figures_;
  std::string uuid_;
  // What recordings share. The first one stays: PyTorch does not let a pool be used again once the
  // last recording in it is gone.
  std::once_flag anchored_;
  std::optional<c10::cuda::CUDAStream> side_;
  at::Tensor anchor_value_;
  std::unique_ptr<CudaGraph> anchor_;
};

}  // namespace
}  // namespace twell::lm

extern "C" __attribute__((visibility("default"))) twell::lm::DeviceRuntime* twell_lm_cuda_runtime(
    int ordinal) {
  return new twell::lm::CudaRuntime(ordinal);  // lives as long as the process
}
