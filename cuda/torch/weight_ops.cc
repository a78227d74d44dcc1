#include "torch_ops/weight_ops.h"

#include "cuda/kernels/common/check.h"
#include "cuda/torch/cuda_call.h"

namespace twell::torch_ops {
namespace {

struct Copy2d {
  void* to;
  std::int64_t to_stride;  // elements
  const void* from;
  std::int64_t from_stride;
  std::int64_t rows, cols;
};

void copy(const Copy2d& c, cuda::Stream stream) {
  if (c.rows == 0 || c.cols == 0) return;
  const auto bytes = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * 2; };
  TWELL_CUDA_CHECK(cudaMemcpy2DAsync(c.to, bytes(c.to_stride), c.from, bytes(c.from_stride),
                                     bytes(c.cols), static_cast<std::size_t>(c.rows),
                                     cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}

// The direction of a screen's axis: f32 [cols] on the weight's GPU.
const float* axis_of(const Argument& axis, std::int64_t cols) {
  require_device(axis);
  const Tensor& tensor = axis.tensor;
  if (tensor.scalar_type() != ScalarType::Float || tensor.dim() != 1 || tensor.size(0) != cols ||
      !tensor.is_contiguous()) {
    fail(axis.operation, axis.name,
         "expected contiguous f32 [" + std::to_string(cols) + "], got " + shape_of(tensor));
  }
  return static_cast<const float*>(tensor.const_data_ptr());
}

}  // namespace

Tensor pack_weight(const Tensor& weight) {
  const Argument argument{"pack_weight", "weight", weight, &weight};
  const ConstMatrixView view = matrix_of(argument);
  const WeightType type = weight_type(view.dtype);
  const CudaCall call(weight);
  const Tensor packed = new_zeros({argument.operation, "packed", weight},
                                  packed_shape(type, view.rows, view.cols), weight.scalar_type());
  copy({packed.mutable_data_ptr(), packed_depth(type, view.cols), view.data, view.row_stride,
        view.rows, view.cols},
       call.stream());
  return packed;
}

Tensor unpack_weight(const Tensor& packed) {
  const Argument argument{"unpack_weight", "packed", packed, &packed};
  const ConstMatrixView view = padded_of(argument);
  const CudaCall call(packed);
  const Tensor weight = new_empty({argument.operation, "weight", packed}, {view.rows, view.cols},
                                  packed.scalar_type());
  copy({weight.mutable_data_ptr(), view.cols, view.data, view.row_stride, view.rows, view.cols},
       call.stream());
  return weight;
}

Tensor screen_weight(const Tensor& weight, const std::optional<Tensor>& axis) {
  constexpr const char* kOperation = "screen_weight";
  const ConstMatrixView view = matrix_of({kOperation, "weight", weight, &weight});
  const float* direction = nullptr;
  if (axis.has_value()) direction = axis_of({kOperation, "axis", *axis, &weight}, view.cols);
  const std::size_t bytes = cuda::screen_bytes(view.rows, view.cols);
  const CudaCall call(weight);
  const Tensor screen = new_empty({kOperation, "screen", weight},
                                  {static_cast<std::int64_t>(bytes)}, ScalarType::Byte);
  cuda::make_screen(view, direction, {screen.mutable_data_ptr(), bytes}, call.stream());
  return screen;
}

}  // namespace twell::torch_ops
