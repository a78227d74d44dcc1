// models/device.h on an NVIDIA GPU, by PyTorch's CUDA half.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <torch/types.h>

#include <array>
#include <cstdio>
#include <optional>

#include "models/device.h"
#include "twell/cuda.h"

namespace twell::lm {
namespace {

// PyTorch's graph: captured on a stream of its own, with a memory pool of its own, so that what the
// step allocates keeps its addresses.
class CudaGraph final : public StepGraph {
 public:
  // Libraries keep a workspace for each stream they meet, so that all recordings use one.
  CudaGraph(at::Device device, const c10::cuda::CUDAStream& side) : device_(device), side_(side) {}

  void capture(const std::function<void()>& step) override {
    const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream(device_.index());
    before.synchronize();
    const c10::cuda::CUDAStreamGuard guard(side_);
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      step();
    } catch (...) {
      // Ends the recording; what it has so far, and the error of its end, are of no use.
      try {
        graph_.capture_end();
      } catch (const std::exception&) {
        (void)cudaGetLastError();
      }
      throw;
    }
    graph_.capture_end();
  }
  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  at::Device device_;
  c10::cuda::CUDAStream side_;
  at::cuda::CUDAGraph graph_;
};

class CudaMarker final : public Marker {
 public:
  void set() override { event_.record(); }
  bool reached() override { return event_.query(); }

 private:
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
  }

  std::string describe() const override { return figures_.name; }
  void synchronize() override { c10::cuda::getCurrentCUDAStream(device_.index()).synchronize(); }
  std::unique_ptr<StepGraph> make_graph() override {
    if (!side_) side_ = c10::cuda::getStreamFromPool(false, device_.index());
    return std::make_unique<CudaGraph>(device_, *side_);
  }
  std::unique_ptr<Marker> make_marker() override { return std::make_unique<CudaMarker>(); }
  bool capturing() const override {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }
  at::Tensor host_buffer(std::int64_t elements, at::ScalarType dtype) override {
    return at::zeros({elements}, at::TensorOptions(dtype).pinned_memory(true));
  }
  std::int64_t peak_bytes() override { return stats().peak; }
  void reset_peak_bytes() override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
  }
  std::string uuid() const override { return uuid_; }
  double sparse_to_dense(const LayerShape& layer, std::int64_t rows,
                         double density) const override {
    const cuda::FfnCost cost = cuda::estimate_ffn(figures_, problem(layer, rows), density);
    return cost.sparse / cost.dense;
  }
  std::string explain_ffn(const LayerShape& layer, std::int64_t rows) const override {
    return cuda::plan_ffn(figures_, problem(layer, rows)).to_string();
  }

 private:
  static cuda::Problem problem(const LayerShape& layer, std::int64_t rows) {
    cuda::Problem out;
    out.tokens = rows;
    out.depth = layer.depth;
    out.hidden = layer.hidden;
    out.dtype = layer.dtype == at::kHalf ? DType::f16 : DType::bf16;
    out.gated = layer.gated;
    out.aligned = layer.depth % 8 == 0;
    return out;
  }
  c10::CachingAllocator::Stat stats() const {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index())
        .allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  }

  at::Device device_;
  cuda::Device figures_;
  std::string uuid_;
  std::optional<c10::cuda::CUDAStream> side_;
};

}  // namespace
}  // namespace twell::lm

extern "C" __attribute__((visibility("default"))) twell::lm::DeviceRuntime* twell_lm_cuda_runtime(
    int ordinal) {
  return new twell::lm::CudaRuntime(ordinal);  // lives as long as the process
}
