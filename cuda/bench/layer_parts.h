// The two kernels of a layer apart, on all its rows at once.
#pragma once

#include <cstdint>

#include "cuda/bench/device_layer.h"
#include "cuda/bench/device_memory.h"
#include "twell/cuda.h"

namespace twell::bench {

class LayerParts {
 public:
  LayerParts(const cuda::Device& device, const DeviceLayer& layer, std::int64_t tokens,
             const cuda::FfnPlan& plan, cudaStream_t stream);
  // After a library's gate the gather is no operation of its own: it takes what the whole layer
  // takes beyond the gate.
  bool has_gather() const { return fused_; }
  void gate() const;
  void gather() const;  // of what gate() wrote

 private:
  const DeviceLayer& layer_;
  std::int64_t tokens_;
  cudaStream_t stream_;
  bool fused_;
  cuda::GemmPlan gemm_;
  cuda::GatherPlan gather_;
  TwellLayout layout_;
  DeviceMemory<std::int32_t> counts_;
  DeviceMemory<std::uint32_t> slots_;
  DeviceMemory<std::byte> memory_;
  DeviceMemory<std::uint16_t> y_;
};

}  // namespace twell::bench
