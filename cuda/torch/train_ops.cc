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
  const char* operation;
  const FormArguments& form;
  const Tensor &x, &gate;
  const std::optional<Tensor>& up;
  const Tensor& down;

  Rows rows = rows_of({operation, "x", x, &x});
  ActivationSpec activation = plain_activation(operation, form);
  FfnWeights weights = weights_of();

  FfnWeights weights_of() const {
    FfnWeights out;
    out.gate = matrix_of({operation, "gate", gate, &x});
    if (up.has_value()) out.up = matrix_of({operation, "up", *up, &x});
    out.down = matrix_of({operation, "down", down, &x});
    require_hot(operation, form.hot, out.down.rows);
    return out;
  }
  cuda::TrainPlan plan(const CudaCall& gpu) const {
    return cuda::plan_train(gpu.device(), problem_of(rows.view, weights, activation, form.hot));
  }
  std::vector<std::int64_t> kept_shape() const {
    return {cuda::most_kept_bytes(rows.view.rows, weights.gate.rows, form.hot) / 2};
  }
};

cuda::Workspace memory_of(const Tensor& values) {
  return {values.mutable_data_ptr(), static_cast<std::size_t>(values.numel()) * 2};
}

// What a backward pass reads.
struct BackwardOperands {
  BackwardOperands(const Call& call, const Tensor& dy, const Tensor& values_tensor,
                   const std::optional<Tensor>& l1_grad)
      : values(values_tensor), dy_rows(rows_of({call.operation, "dy", dy, &call.x})) {
    require_device({call.operation, "values", values, &call.x});
    const std::vector<std::int64_t> shape = call.kept_shape();
    if (values.dim() != 1 || values.size(0) != shape[0] || !values.is_contiguous() ||
        values.scalar_type() != scalar_type_of(call.rows.view.dtype)) {
      fail(call.operation, "values",
           "expected " + list_of(shape.data(), 1) + " as ffn_train makes it, got " +
               shape_of(values));
    }
    in.dy = dy_rows.view;
    in.x = call.rows.view;
    in.weights = call.weights;
    in.activation = call.activation;
    if (!l1_grad.has_value()) return;
    require_device({call.operation, "l1_grad", *l1_grad, &call.x});
    if (l1_grad->scalar_type() != ScalarType::Float || l1_grad->numel() != 1) {
      fail(call.operation, "l1_grad", "expected Float [], got " + shape_of(*l1_grad));
    }
    in.l1 = static_cast<const float*>(l1_grad->const_data_ptr());
  }
  const Tensor& values;
  Rows dy_rows;
  cuda::DeviceFfnBackward in;
};

MatrixView gradient_of(const Call& call, const char* name, const Tensor& tensor, DType dtype) {
  require_device({call.operation, name, tensor, &call.x});
  if (tensor.dim() != 2 || tensor.stride(1) != 1 || tensor.scalar_type() != scalar_type_of(dtype)) {
    fail(call.operation, name,
         std::string("expected ") + name_of(dtype) + " [H, D] with contiguous rows, got " +
             shape_of(tensor));
  }
  return {tensor.mutable_data_ptr(), dtype, tensor.size(0), tensor.size(1), tensor.stride(0)};
}

// Makes dx, and writes or adds the gradients of the weights.
Tensor run_backward(const Call& call, const BackwardOperands& operands,
                    cuda::DeviceFfnGradients out) {
  const ConstMatrixView& x = call.rows.view;
  const CudaCall gpu(call.x);
  const Tensor dx = new_rows({call.operation, "x", call.x}, x.cols, x.dtype);
  out.dx = MatrixView(dx.mutable_data_ptr(), x.dtype, x.rows, x.cols);
  const cuda::TrainPlan plan = call.plan(gpu);
  const CudaWorkspace workspace(call.operation, call.x, plan.workspace_bytes);
  cuda::ffn_backward(plan, operands.in, out, memory_of(operands.values), workspace.get(),
                     gpu.stream());
  return dx;
}

}  // namespace

TrainedFfn ffn_train(const FormArguments& form, const Tensor& x, const Tensor& gate,
                     const std::optional<Tensor>& up, const Tensor& down,
                     const std::optional<Tensor>& screen) {
  constexpr const char* kOperation = "ffn_train";
  if (screen.has_value()) {
    fail(kOperation, "screen", "expected none: a GPU multiplies all of the gate");
  }
  const Call call = {kOperation, form, x, gate, up, down};
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

FfnGradientTensors ffn_train_backward(const FormArguments& form, const Tensor& dy, const Tensor& x,
                                      const Tensor& gate, const std::optional<Tensor>& up,
                                      const Tensor& down, const Tensor&, const Tensor&,
                                      const Tensor& values, const std::optional<Tensor>& l1_grad) {
  constexpr const char* kOperation = "ffn_train_backward";
  const Call call = {kOperation, form, x, gate, up, down};
  const BackwardOperands operands(call, dy, values, l1_grad);
  const DType dtype = call.rows.view.dtype;
  const auto like = [&](const char* name, const WeightView& weight) {
    return new_empty({kOperation, name, x}, {weight.rows, weight.cols}, scalar_type_of(dtype));
  };
  const Tensor dgate = like("dgate", call.weights.gate);
  const auto none = [&](const char* name) {
    return new_empty({kOperation, name, x}, {0}, scalar_type_of(dtype));
  };
  const Tensor dup = up.has_value() ? like("dup", *call.weights.up) : none("dup");
  const Tensor ddown = like("ddown", call.weights.down);
  cuda::DeviceFfnGradients out;
  out.gate = gradient_of(call, "dgate", dgate, dtype);
  if (up.has_value()) out.up = gradient_of(call, "dup", dup, dtype);
  out.down = gradient_of(call, "ddown", ddown, dtype);
  const Tensor dx = run_backward(call, operands, out);
  return {dx,
          dgate,
          dup,
          ddown,
          none("dgate_bias"),
          none("dup_bias"),
          none("ddown_bias"),
          none("dnorm_weight")};
}

Tensor ffn_train_backward_add(const FormArguments& form, const Tensor& dy, const Tensor& x,
                              const Tensor& gate, const std::optional<Tensor>& up,
                              const Tensor& down, const Tensor&, const Tensor&,
                              const Tensor& values, const std::optional<Tensor>& l1_grad,
                              const Tensor& dgate, const std::optional<Tensor>& dup,
                              const Tensor& ddown, const std::optional<Tensor>&,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const std::optional<Tensor>&) {
  constexpr const char* kOperation = "ffn_train_backward_add";
  const Call call = {kOperation, form, x, gate, up, down};
  const BackwardOperands operands(call, dy, values, l1_grad);
  cuda::DeviceFfnGradients out;
  out.gate = gradient_of(call, "dgate", dgate, DType::f32);
  if (dup.has_value()) out.up = gradient_of(call, "dup", *dup, DType::f32);
  out.down = gradient_of(call, "ddown", ddown, DType::f32);
  out.accumulate = true;
  return run_backward(call, operands, out);
}

}  // namespace twell::torch_ops
