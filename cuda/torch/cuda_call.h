// What a call on a GPU takes from PyTorch: the current stream, and workspace from its allocator.
// And what pack_weight makes there.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "torch_ops/form_arguments.h"
#include "twell/cuda.h"

namespace twell::torch_ops {

// Asked once a process: the driver takes up to a millisecond to tell. Throws where there is no such
// GPU.
const cuda::Device& device_figures(int ordinal);

// pack_weight on a GPU pads and does not reorder: the kernels read [H, D] as it is. The tensor has
// the shape that it has on the CPU, so that the operators' shapes do not depend on the device; its
// memory is [H rounded up to 16, D rounded up to 32], row-major, zeros where padded.
ConstMatrixView padded_of(const Argument& argument);

// The problem of a layer of `weights`, of which the first `hot` neurons are multiplied densely; y
// is fresh memory of PyTorch's allocator.
cuda::Problem problem_of(const ConstMatrixView& x, const FfnWeights& weights,
                         const ActivationSpec& activation, std::int64_t hot);

// The gate's activation of a call. Throws for a form with more: kernels have nothing else yet.
ActivationSpec plain_activation(const LayerArguments& layer);

// The GPU of a tensor as the current one, its figures, and PyTorch's current stream on it.
class CudaCall {
 public:
  explicit CudaCall(const Tensor& like);
  const cuda::Device& device() const { return device_; }
  cuda::Stream stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  const cuda::Device& device_;
  cuda::Stream stream_ = nullptr;
};

// Memory of PyTorch's allocator for one call: given back as this ends, reused only by what follows
// on the stream.
class CudaWorkspace {
 public:
  CudaWorkspace(const char* operation, const Tensor& like, std::size_t bytes);
  cuda::Workspace get() const { return {tensor_.mutable_data_ptr(), bytes_}; }

 private:
  std::size_t bytes_;
  Tensor tensor_;
};

}  // namespace twell::torch_ops
