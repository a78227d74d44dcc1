#include "torch_ops/ffn_ops.h"

#include "cuda/torch/cuda_call.h"

namespace twell::torch_ops {
namespace {

// Of a gate [rows, cols], as screen_weight makes it.
ScreenView screen_view(const Argument& argument, std::int64_t rows, std::int64_t cols) {
  require_device(argument);
  const Tensor& tensor = argument.tensor;
  const auto bytes = static_cast<std::int64_t>(cuda::screen_bytes(rows, cols));
  if (tensor.scalar_type() != ScalarType::Byte || tensor.dim() != 1 || tensor.size(0) != bytes ||
      !tensor.is_contiguous()) {
    fail(argument.operation, argument.name,
         "expected uint8 [" + std::to_string(bytes) + "], as screen_weight makes of [" +
             std::to_string(rows) + ", " + std::to_string(cols) + "] on a GPU, got " +
             shape_of(tensor));
  }
  return {tensor.const_data_ptr(), rows, cols};
}

// One call, its arguments checked before the GPU's figures and stream are asked for.
struct Call {
  Call(const LayerArguments& layer, const Tensor& x_tensor, const std::optional<Tensor>& screen)
      : operation(layer.operation),
        x(x_tensor),
        rows(rows_of({operation, "x", x, &x})),
        activation(plain_activation(layer)) {
    weights.down = matrix_of({operation, "down", layer.down, &x});
    if (layer.up.has_value()) weights.up = matrix_of({operation, "up", *layer.up, &x});
    const Argument gate = {operation, "gate", layer.gate, &x};
    if (screen.has_value()) {
      weights.gate = matrix_of(gate);
      weights.screen =
          screen_view({operation, "screen", *screen, &x}, weights.gate.rows, weights.gate.cols);
    } else {
      weights.gate = padded_of(gate);
    }
    problem = problem_of(rows.view, weights, activation, layer.hot);
    require_hot(operation, layer.hot, weights.down.rows);
  }

  Tensor run(const CudaCall& gpu, const cuda::DeviceStats& stats) const {
    const Tensor y = new_rows({operation, "x", x}, rows.view.cols, rows.view.dtype);
    const MatrixView out(y.mutable_data_ptr(), rows.view.dtype, rows.view.rows, rows.view.cols);
    const cuda::FfnPlan plan = cuda::plan_ffn(gpu.device(), problem);
    const CudaWorkspace workspace(operation, x, plan.workspace_bytes);
    cuda::ffn(plan, rows.view, weights, activation, out, workspace.get(), gpu.stream(), stats);
    return y;
  }

  const char* operation;
  const Tensor& x;
  Rows rows;
  ActivationSpec activation;
  FfnWeights weights;
  cuda::Problem problem;
};

}  // namespace

Tensor ffn(const Tensor& x, const OptionalTensors& weights, const std::optional<Tensor>& screen,
           const std::string& form, std::int64_t hot) {
  const Call call({"ffn", weights, form, hot}, x, screen);
  return call.run(CudaCall(x), {});
}

FfnStats ffn_stats(const Tensor& x, const OptionalTensors& weights,
                   const std::optional<Tensor>& screen, const std::string& form, std::int64_t hot) {
  const Call call({"ffn_stats", weights, form, hot}, x, screen);
  const CudaCall gpu(x);
  const auto zeros = [&](const char* name, const std::vector<std::int64_t>& shape,
                         ScalarType type) {
    return new_zeros({call.operation, name, x}, shape, type);
  };
  const Tensor row_nnz = zeros("row_nnz", leading_of(x), ScalarType::Int);
  const Tensor neuron_nnz = zeros("neuron_nnz", {call.weights.down.rows}, ScalarType::Long);
  const Tensor candidates = zeros("candidates", {}, ScalarType::Long);
  const Tensor y = call.run(gpu, {static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()),
                                  static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()),
                                  static_cast<std::int64_t*>(candidates.mutable_data_ptr())});
  return {y, row_nnz, neuron_nnz, candidates};
}

}  // namespace twell::torch_ops
