#include "torch_ops_cuda/ops.h"

namespace twell::torch_ops::on_cuda {
namespace {

// One call of a layer; `up` is null where it is not gated.
struct Layer {
  const char* operation;
  const Tensor& x;
  const char* packed_name;
  const Tensor& packed;
  const Tensor* up;
  const Tensor& down;
  const std::string& activation;
  double threshold;
};

// The arguments as views, checked before the GPU's figures and stream are asked for.
struct Checked {
  Rows rows;
  ActivationSpec activation;
  cuda::DeviceFfnWeights weights;
};

Checked check(const Layer& layer) {
  const char* operation = layer.operation;
  const Rows rows = cuda_rows_of({operation, "x", layer.x});
  const ActivationSpec activation = activation_of(operation, layer.activation, layer.threshold);
  const std::int64_t depth = rows.view.cols;
  cuda::DeviceFfnWeights weights;
  weights.down = cuda_matrix_of({operation, "down", layer.down}, layer.x, -1, depth);
  const std::int64_t hidden = weights.down.rows;
  if (layer.up != nullptr) {
    weights.up = cuda_matrix_of({operation, "up", *layer.up}, layer.x, hidden, depth);
  }
  weights.gate =
      cuda_packed_of({operation, layer.packed_name, layer.packed}, layer.x, hidden, depth);
  return {rows, activation, weights};
}

Tensor run(const Layer& layer, const Checked& checked, const CudaCall& call,
           const cuda::DeviceStats& stats) {
  const ConstMatrixView& x = checked.rows.view;
  const auto sizes = layer.x.sizes();
  const Tensor y = new_empty({layer.operation, "y", layer.x}, {sizes.begin(), sizes.end()},
                             layer.x.scalar_type());
  const MatrixView out(y.mutable_data_ptr(), x.dtype, x.rows, x.cols);
  const cuda::FfnPlan plan =
      cuda::plan_ffn(call.device(), cuda::problem_of(x, checked.weights, out));
  const CudaWorkspace workspace(layer.operation, layer.x, plan.workspace_bytes);
  cuda::ffn(plan, x, checked.weights, checked.activation, out, workspace.get(), call.stream(),
            stats);
  return y;
}

Tensor run(const Layer& layer) {
  const Checked checked = check(layer);
  return run(layer, checked, CudaCall(layer.x), {});
}

std::tuple<Tensor, Tensor, Tensor> run_with_stats(const Layer& layer) {
  const Checked checked = check(layer);
  const CudaCall call(layer.x);
  const auto sizes = layer.x.sizes();
  const Tensor row_nnz = new_zeros({layer.operation, "row_nnz", layer.x},
                                   {sizes.begin(), sizes.end() - 1}, ScalarType::Int);
  const Tensor neuron_counts = new_zeros({layer.operation, "neuron_counts", layer.x},
                                         {checked.weights.down.rows}, ScalarType::Long);
  const Tensor y = run(layer, checked, call,
                       {static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()),
                        static_cast<std::int64_t*>(neuron_counts.mutable_data_ptr())});
  return {y, row_nnz, neuron_counts};
}

}  // namespace

Tensor gated_ffn(const Tensor& x, const Tensor& gate_packed, const Tensor& up, const Tensor& down,
                 const std::string& activation, double threshold) {
  return run({"gated_ffn", x, "gate_packed", gate_packed, &up, down, activation, threshold});
}

std::tuple<Tensor, Tensor, Tensor> gated_ffn_stats(const Tensor& x, const Tensor& gate_packed,
                                                   const Tensor& up, const Tensor& down,
                                                   const std::string& activation,
                                                   double threshold) {
  return run_with_stats(
      {"gated_ffn_stats", x, "gate_packed", gate_packed, &up, down, activation, threshold});
}

Tensor ffn(const Tensor& x, const Tensor& up_packed, const Tensor& down,
           const std::string& activation, double threshold) {
  return run({"ffn", x, "up_packed", up_packed, nullptr, down, activation, threshold});
}

std::tuple<Tensor, Tensor, Tensor> ffn_stats(const Tensor& x, const Tensor& up_packed,
                                             const Tensor& down, const std::string& activation,
                                             double threshold) {
  return run_with_stats(
      {"ffn_stats", x, "up_packed", up_packed, nullptr, down, activation, threshold});
}

}  // namespace twell::torch_ops::on_cuda
