#include "cuda/torch/cuda_call.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <map>
#include <mutex>

namespace twell::torch_ops {
namespace {

cuda::Stream current_stream(int ordinal) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(ordinal, &stream));
  return stream;
}

}  // namespace

const cuda::Device& device_figures(int ordinal) {
  static std::mutex mutex;
  static std::map<int, const cuda::Device> known;
  const std::lock_guard lock(mutex);
  auto found = known.find(ordinal);
  if (found == known.end()) found = known.emplace(ordinal, cuda::device(ordinal)).first;
  return found->second;
}

ConstMatrixView padded_of(const Argument& argument) {
  const WeightView packed = packed_of(argument);
  const DType dtype = dtype_of(argument);
  return {packed.data, dtype, packed.rows, packed.cols, packed_depth(packed.type, packed.cols)};
}

cuda::Problem problem_of(const ConstMatrixView& x, const FfnWeights& weights,
                         const ActivationSpec& activation, std::int64_t hot) {
  const ConstMatrixView y(nullptr, x.dtype, x.rows, x.cols);  // aligned
  cuda::Problem problem = cuda::problem_of(x, weights, y, activation);
  problem.hot = hot;
  problem.trusted = true;  // PyTorch knows where its tensors are
  return problem;
}

ActivationSpec plain_activation(const LayerArguments& layer) {
  const auto refuse_if = [&layer](bool there, const char* argument) {
    if (there) {
      fail(layer.operation, argument, "is not there on a GPU yet; use PyTorch's dense layers");
    }
  };
  refuse_if(layer.form.up != Activation::identity, "up_activation");
  for (std::size_t at = kMatrices; at < layer.weights.size(); ++at) {
    refuse_if(layer.weights[at].has_value(), weight_name(at));
  }
  refuse_if(layer.form.norm_epsilon.has_value(), "norm_epsilon");
  return layer.form.gate;
}

CudaCall::CudaCall(const Tensor& like)
    : guard_(like.get_device_index()),
      device_(device_figures(like.get_device_index())),
      stream_(current_stream(like.get_device_index())) {}

CudaWorkspace::CudaWorkspace(const char* operation, const Tensor& like, std::size_t bytes)
    : bytes_(bytes),
      tensor_(new_empty({operation, "workspace", like}, {static_cast<std::int64_t>(bytes)},
                        ScalarType::Byte)) {}

}  // namespace twell::torch_ops
