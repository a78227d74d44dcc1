// torch_ops/train_ops.h on CUDA tensors. What the forward pass keeps is one piece of memory, in
// `values`; `offsets` and `neurons` are empty. Its size depends on shapes alone, so that fake
// functions know it (python/twell/_fake.py).
#include "torch_ops/train_ops.h"

#include <torch/csrc/stable/ops.h>

#include "cuda/torch/cuda_call.h"
#include "twell/cuda_train.h"

namespace twell::torch_ops {
namespace {

// The weights of a call and its plan, arguments checked before the GPU's figures are asked for.
struct Call {
  const LayerArguments layer;
  const Tensor& x;

  Rows rows = rows_of(argument("x", x));
  ActivationSpec activation = plain_activation(layer);
  FfnWeights weights = weights_of();

  Argument argument(const char* name, const Tensor& tensor) const {
    return {layer.operation, name, tensor, &x};
  }
  FfnWeights weights_of() const {
    FfnWeights out;
    out.gate = matrix_of(argument("gate", layer.gate));
    if (layer.up.has_value()) out.up = matrix_of(argument("up", *layer.up));
    out.down = matrix_of(argument("down", layer.down));
    require_hot(layer.operation, layer.hot, out.down.rows);
    return out;
  }
  cuda::TrainPlan plan(const CudaCall& gpu) const {
    return cuda::plan_train(gpu.device(), problem_of(rows.view, weights, activation, layer.hot));
  }
  std::vector<std::int64_t> kept_shape() const {
    return {cuda::most_kept_bytes(rows.view.rows, weights.gate.rows, layer.hot) / 2};
  }
};

cuda::Workspace memory_of(const Tensor& values) {
  return {values.mutable_data_ptr(), static_cast<std::size_t>(values.numel()) * 2};
}

// The one of three tensors that has what was kept.
const Tensor& kept_values(const Call& call, const std::vector<Tensor>& kept) {
  require_kept(call.layer.operation, kept);
  const Tensor& values = kept[2];
  require_device(call.argument("values", values));
  const std::vector<std::int64_t> shape = call.kept_shape();
  if (values.dim() != 1 || values.size(0) != shape[0] || !values.is_contiguous() ||
      values.scalar_type() != scalar_type_of(call.rows.view.dtype)) {
    fail(
        call.layer.operation, "values",
        "expected " + list_of(shape.data(), 1) + " as ffn_train makes it, got " + shape_of(values));
  }
  return values;
}

// What a backward pass reads.
struct BackwardOperands {
  BackwardOperands(const Call& call, const Tensor& dy, const std::vector<Tensor>& kept,
                   const std::optional<Tensor>& l1_grad)
      : values(kept_values(call, kept)), dy_rows(rows_of(call.argument("dy", dy))) {
    in.dy = dy_rows.view;
    in.x = call.rows.view;
    in.weights = call.weights;
    in.activation = call.activation;
    if (!l1_grad.has_value()) return;
    require_device(call.argument("l1_grad", *l1_grad));
    if (l1_grad->scalar_type() != ScalarType::Float || l1_grad->numel() != 1) {
      fail(call.layer.operation, "l1_grad", "expected Float [], got " + shape_of(*l1_grad));
    }
    in.l1 = static_cast<const float*>(l1_grad->const_data_ptr());
  }
  const Tensor& values;
  Rows dy_rows;
  cuda::DeviceFfnBackward in;
};

// dgate, dup and ddown.
cuda::DeviceFfnGradients matrices_of(const Call& call, const OptionalTensors& gradients,
                                     DType dtype) {
  const auto matrix = [&](std::size_t at) {
    const char* const name = gradient_name(at);
    const Tensor& tensor = required(call.layer.operation, name, gradients, at);
    require_device(call.argument(name, tensor));
    if (tensor.dim() != 2 || tensor.stride(1) != 1 ||
        tensor.scalar_type() != scalar_type_of(dtype)) {
      fail(call.layer.operation, name,
           std::string("expected ") + name_of(dtype) + " [H, D] with contiguous rows, got " +
               shape_of(tensor));
    }
    return MatrixView(tensor.mutable_data_ptr(), dtype, tensor.size(0), tensor.size(1),
                      tensor.stride(0));
  };
  cuda::DeviceFfnGradients out;
  out.gate = matrix(0);
  if (entry(gradients, 1).has_value()) out.up = matrix(1);
  out.down = matrix(2);
  return out;
}

// Makes dx, and writes or adds the gradients of the weights.
Tensor run_backward(const Call& call, const BackwardOperands& operands,
                    cuda::DeviceFfnGradients out) {
  const ConstMatrixView& x = call.rows.view;
  const CudaCall gpu(call.x);
  const Tensor dx = new_rows(call.argument("x", call.x), x.cols, x.dtype);
  out.dx = MatrixView(dx.mutable_data_ptr(), x.dtype, x.rows, x.cols);
  const cuda::TrainPlan plan = call.plan(gpu);
  const CudaWorkspace workspace(call.layer.operation, call.x, plan.workspace_bytes);
  cuda::ffn_backward(plan, operands.in, out, memory_of(operands.values), workspace.get(),
                     gpu.stream());
  return dx;
}

}  // namespace

TrainedFfn ffn_train(const Tensor& x, const OptionalTensors& weights,
                     const std::optional<Tensor>& screen, const std::string& form,
                     std::int64_t hot) {
  constexpr const char* kOperation = "ffn_train";
  if (screen.has_value()) {
    fail(kOperation, "screen", "expected none: a GPU multiplies all of the gate");
  }
  const Call call = {{kOperation, weights, form, hot}, x};
  const CudaCall gpu(x);
  const cuda::TrainPlan plan = call.plan(gpu);
  const ConstMatrixView& in = call.rows.view;
  const Tensor y = new_rows({kOperation, "x", x}, in.cols, in.dtype);
  const Tensor row_l1 = new_empty({kOperation, "l1", x}, {in.rows}, ScalarType::Float);
  const Tensor row_nnz = new_empty({kOperation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  const Tensor neuron_nnz =
      new_zeros({kOperation, "neuron_nnz", x}, {call.weights.gate.rows}, ScalarType::Long);
  const Tensor offsets = new_empty({kOperation, "offsets", x}, {0}, ScalarType::Long);
  const Tensor neurons = new_empty({kOperation, "neurons", x}, {0}, ScalarType::Int);
  const Tensor values =
      new_empty({kOperation, "values", x}, call.kept_shape(), scalar_type_of(in.dtype));
  const CudaWorkspace workspace(kOperation, x, plan.workspace_bytes);
  cuda::ffn_forward(plan, in, call.weights, call.activation,
                    MatrixView(y.mutable_data_ptr(), in.dtype, in.rows, in.cols), memory_of(values),
                    workspace.get(), gpu.stream(),
                    {static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()),
                     static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr())},
                    static_cast<float*>(row_l1.mutable_data_ptr()));
  return {y, torch::stable::sum(row_l1), row_nnz, neuron_nnz, offsets, neurons, values};
}

GradientTensors ffn_train_backward(const Tensor& dy, const Tensor& x,
                                   const OptionalTensors& weights, const std::vector<Tensor>& kept,
                                   const std::optional<Tensor>& l1_grad, const std::string& form,
                                   std::int64_t hot) {
  constexpr const char* kOperation = "ffn_train_backward";
  const Call call = {{kOperation, weights, form, hot}, x};
  const BackwardOperands operands(call, dy, kept, l1_grad);
  const DType dtype = call.rows.view.dtype;
  const auto made = [&](std::size_t at, const std::vector<std::int64_t>& shape) {
    return new_empty({kOperation, gradient_name(at), x}, shape, scalar_type_of(dtype));
  };
  const auto like = [&](std::size_t at, const WeightView& weight) {
    return made(at, {weight.rows, weight.cols});
  };
  OptionalTensors gradients = {like(0, call.weights.gate), {}, like(2, call.weights.down)};
  if (call.weights.up) gradients[1] = like(1, *call.weights.up);
  std::array<Tensor, 1 + kWeights> out;
  out[0] = run_backward(call, operands, matrices_of(call, gradients, dtype));
  for (std::size_t at = 0; at < kWeights; ++at) {
    const std::optional<Tensor>& there = entry(gradients, at);
    out[1 + at] = there.has_value() ? *there : made(at, {0});
  }
  return std::tuple_cat(out);
}

Tensor ffn_train_backward_add(const Tensor& dy, const Tensor& x, const OptionalTensors& weights,
                              const std::vector<Tensor>& kept, const std::optional<Tensor>& l1_grad,
                              const OptionalTensors& gradients, const std::string& form,
                              std::int64_t hot) {
  const Call call = {{"ffn_train_backward_add", weights, form, hot}, x};
  const BackwardOperands operands(call, dy, kept, l1_grad);
  cuda::DeviceFfnGradients out = matrices_of(call, gradients, DType::f32);
  out.accumulate = true;
  return run_backward(call, operands, out);
}

}  // namespace twell::torch_ops
