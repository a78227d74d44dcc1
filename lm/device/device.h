// CPU or GPU: opening one by name, and what models and the engine ask of it besides tensors.
//
// Nothing here is linked to CUDA. PyTorch's CUDA half and twell's own are loaded when a GPU is
// asked for, so that programs without one neither need them nor wait for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twell/cost.h"

namespace twell::lm {

// Tokens by which a sparse layer of a GPU orders its neurons (cuda/layer/neuron_popularity.h).
inline constexpr std::int64_t kTokensToOrder = 1024;

// Work that is repeated with the same tensors: recorded once, started as a whole.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Records `step` without running it. It must have run before, so that nothing is made for the
  // first time; its tensors must stay where they are. What it allocates belongs to the recording.
  virtual void capture(const std::function<void()>& step) = 0;
  virtual void replay() = 0;
};

// A point in the work enqueued so far.
class Marker {
 public:
  virtual ~Marker() = default;
  virtual void set() = 0;      // after all that was enqueued
  virtual bool reached() = 0;  // does not wait; true where never set
};

// Neurons of a sparse layer that GEMMs had better multiply densely: the first ones, where neurons
// are ordered by how many tokens fire them.
struct HotChoice {
  std::int64_t count = 0;
  // What the layer is expected to take with them, as a share of its time if all neurons fired
  // equally often. At most 1.
  double time = 1.0;
};

// How a layer is trained on a GPU.
struct TrainingChoice {
  bool sparse = false;   // torch.ops.twell.ffn_train; else PyTorch's dense operations
  std::int64_t hot = 0;  // of ffn_train
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual std::string describe() const = 0;
  // Waits for all work of the current stream; a failure of it is reported here.
  virtual void synchronize() = 0;
  virtual std::unique_ptr<StepGraph> make_graph() = 0;
  virtual std::unique_ptr<Marker> make_marker() = 0;
  virtual bool capturing() const = 0;  // whether a StepGraph is recording
  // Host memory that the device writes to without a wait.
  virtual at::Tensor host_buffer(std::int64_t elements, at::ScalarType dtype) = 0;
  // Bytes of the device in use at most since the last reset; 0 where that is not counted.
  virtual std::int64_t peak_bytes() = 0;
  virtual void reset_peak_bytes() = 0;
  // Bytes that could still be allocated; 0 where that is not known.
  virtual std::int64_t free_bytes() { return 0; }
  virtual std::string uuid() const = 0;  // as NVML has it, "GPU-…"; empty for the CPU

  // --- sparse feed-forward layers ---
  virtual bool is_cpu() const { return false; }
  // The following are asked of a GPU. A CPU's layers decide by themselves (twell/layer.h).
  // Of both paths, from the figures of the device.
  virtual CostModel estimated_cost(const FfnShape& /*shape*/) const { return {}; }
  // rates[n]: the share of tokens that fire neuron n, the highest first.
  virtual HotChoice choose_hot(const FfnShape& /*shape*/, std::int64_t /*rows*/,
                               const std::vector<double>& /*rates*/) const {
    return {};
  }
  // Of forward and backward of a layer with such rates.
  virtual TrainingChoice choose_training(const FfnShape& /*shape*/, std::int64_t /*rows*/,
                                         const std::vector<double>& /*rates*/) const {
    return {};
  }
  // The share of a call's neurons up to which its plan gains by a screen of the gate that leaves
  // them; 0 where the plan takes none.
  virtual double candidates_limit(const FfnShape& /*shape*/, std::int64_t /*rows*/) const {
    return 0.0;
  }
  // The plan of a call with so many hot neurons, in words.
  virtual std::string explain_ffn(const FfnShape& /*shape*/, GateForm /*gate*/,
                                  std::int64_t /*rows*/, std::int64_t /*hot*/) const {
    return {};
  }
};

// "cpu", "cuda" or "cuda:N". Throws twell::Error on other names and, in one line with what to do,
// where there is no such GPU or no library for it. Call it before any other work: PyTorch looks for
// its CUDA half once.
at::Device open_device(std::string_view name);

// Of a device that was opened. One a device and process.
DeviceRuntime& runtime_of(at::Device device);

// How libtwell_lm_cuda.so hands out its runtime: the function of this name and type.
inline constexpr const char* kCudaRuntimeSymbol = "twell_lm_cuda_runtime";
using CudaRuntimeFactory = DeviceRuntime* (*)(int ordinal);

}  // namespace twell::lm
