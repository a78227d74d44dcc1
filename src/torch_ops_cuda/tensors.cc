#include "torch_ops_cuda/tensors.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <map>
#include <mutex>

namespace twell::torch_ops {
namespace {

// Asked once a process: the driver takes up to a millisecond to tell.
const cuda::Device& device_figures(int ordinal) {
  static std::mutex mutex;
  static std::map<int, const cuda::Device> known;
  const std::lock_guard lock(mutex);
  auto found = known.find(ordinal);
  // Throws where there is no such GPU.
  if (found == known.end()) found = known.emplace(ordinal, cuda::device(ordinal)).first;
  return found->second;
}

cuda::Stream current_stream(int ordinal) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(ordinal, &stream));
  return stream;
}

void require_cuda(const Argument& argument, const Tensor& like) {
  if (!argument.tensor.is_cuda()) {
    fail(argument.operation, argument.name,
         "expected a CUDA tensor, as the other arguments are; move it with .cuda()");
  }
  if (argument.tensor.get_device_index() != like.get_device_index()) {
    fail(argument.operation, argument.name,
         "expected a tensor on cuda:" + std::to_string(like.get_device_index()) +
             " as the first argument is, got cuda:" +
             std::to_string(argument.tensor.get_device_index()));
  }
}

// Rows at 16 bytes are faster, but only half an element is an error.
const void* elements_of(const Argument& argument, const Tensor& tensor) {
  const void* data = tensor.const_data_ptr();
  if (reinterpret_cast<std::uintptr_t>(data) % 2 != 0) {  // NOLINT
    fail(argument.operation, argument.name,
         "expected an address that is a multiple of 2 bytes, its element's size");
  }
  return data;
}

}  // namespace

DType cuda_dtype_of(const Argument& argument) {
  const ScalarType type = argument.tensor.scalar_type();
  if (type == ScalarType::BFloat16) return DType::bf16;
  if (type == ScalarType::Half) return DType::f16;
  fail(argument.operation, argument.name,
       std::string("expected dtype bfloat16 or float16 on a GPU, got ") +
           torch::headeronly::toString(type));
}

ConstMatrixView cuda_matrix_of(const Argument& argument, const Tensor& like) {
  const Tensor& tensor = argument.tensor;
  require_cuda(argument, like);
  const DType dtype = cuda_dtype_of(argument);
  if (tensor.dim() != 2) {
    fail(argument.operation, argument.name,
         "expected a matrix [rows, columns], got shape " + shape_of(tensor));
  }
  const std::int64_t rows = tensor.size(0);
  const std::int64_t cols = tensor.size(1);
  const std::int64_t stride = rows > 1 ? tensor.stride(0) : cols;
  if ((cols > 1 && tensor.stride(1) != 1) || stride < cols) {
    fail(argument.operation, argument.name,
         "expected rows of adjacent elements; call .contiguous() once, outside");
  }
  return {elements_of(argument, tensor), dtype, rows, cols, stride};
}

Rows cuda_rows_of(const Argument& argument) {
  require_cuda(argument, argument.tensor);
  const DType dtype = cuda_dtype_of(argument);
  if (argument.tensor.dim() < 1) {
    fail(argument.operation, argument.name, "expected shape [..., columns], got a scalar");
  }
  const Tensor tensor =
      argument.tensor.is_contiguous() ? argument.tensor : contiguous_copy(argument);
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < tensor.dim(); ++i) rows *= tensor.size(i);
  const std::int64_t cols = tensor.size(tensor.dim() - 1);
  return {tensor, {elements_of(argument, tensor), dtype, rows, cols}};
}

ConstMatrixView cuda_packed_of(const Argument& argument, const Tensor& like, std::int64_t rows,
                               std::int64_t cols) {
  require_cuda(argument, like);
  const DType dtype = cuda_dtype_of(argument);
  require_packed_shape(argument, dtype, rows, cols);
  if (!argument.tensor.is_contiguous()) {
    fail(argument.operation, argument.name, "expected contiguous memory; call .clone() once");
  }
  return {elements_of(argument, argument.tensor), dtype, rows, cols, packed_depth(dtype, cols)};
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
