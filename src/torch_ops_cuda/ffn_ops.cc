#include "torch_ops/ffn_ops.h"

#include "torch_ops_cuda/cuda_call.h"

namespace twell::torch_ops {
namespace {

// One call, its arguments checked before the GPU's figures and stream are asked for.
struct Call {
  Call(const char* name, const Tensor& x_tensor, const Tensor& gate,
       const std::optional<Tensor>& up, const Tensor& down, const std::optional<Tensor>& screen,
       const std::string& activation_name, double threshold, std::int64_t hot)
      : operation(name), x(x_tensor), rows(rows_of({name, "x", x_tensor, &x_tensor})) {
    if (screen.has_value()) fail(name, "screen", "expected none: a GPU multiplies the packed gate");
    activation = activation_of(name, activation_name, threshold);
    weights.down = matrix_of({name, "down", down, &x});
    if (up.has_value()) weights.up = matrix_of({name, "up", *up, &x});
    weights.gate = padded_of({name, "gate", gate, &x}, weights.down.rows, rows.view.cols);
    const ConstMatrixView& in = rows.view;
    // Fresh memory of PyTorch's allocator is aligned.
    problem = cuda::problem_of(in, weights, ConstMatrixView(nullptr, in.dtype, in.rows, in.cols),
                               activation);
    require_hot(name, hot, weights.down.rows);
    problem.hot = hot;
    problem.trusted = true;  // PyTorch knows where its tensors are
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
  cuda::DeviceFfnWeights weights;
  cuda::Problem problem;
};

}  // namespace

Tensor ffn(const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up, const Tensor& down,
           const std::optional<Tensor>& screen, const std::string& activation, double threshold,
           std::int64_t hot) {
  const Call call("ffn", x, gate, up, down, screen, activation, threshold, hot);
  return call.run(CudaCall(x), {});
}

FfnStats ffn_stats(const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up,
                   const Tensor& down, const std::optional<Tensor>& screen,
                   const std::string& activation, double threshold, std::int64_t hot) {
  const Call call("ffn_stats", x, gate, up, down, screen, activation, threshold, hot);
  const CudaCall gpu(x);
  const auto zeros = [&](const char* name, const std::vector<std::int64_t>& shape,
                         ScalarType type) {
    return new_zeros({call.operation, name, x}, shape, type);
  };
  const Tensor row_nnz = zeros("row_nnz", leading_of(x), ScalarType::Int);
  const Tensor neuron_nnz = zeros("neuron_nnz", {call.weights.down.rows}, ScalarType::Long);
  const Tensor y = call.run(gpu, {static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()),
                                  static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr())});
  return {y, row_nnz, neuron_nnz, zeros("candidates", {}, ScalarType::Long)};
}

}  // namespace twell::torch_ops
