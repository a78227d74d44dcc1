#include "torch_ops/ffn_ops.h"

#include "torch_ops/cpu_context.h"

namespace twell::torch_ops {
namespace {

std::vector<std::int64_t> leading_shape(const Tensor& x) {
  const auto sizes = x.sizes();
  return {sizes.begin(), sizes.end() - 1};
}

FfnWeights gated_weights(const char* operation, const ConstMatrixView& x, const Tensor& gate_packed,
                         const Tensor& up, const Tensor& down) {
  FfnWeights weights;
  weights.up = matrix_of({operation, "up", up}, x.dtype, -1, x.cols);
  weights.down = matrix_of({operation, "down", down}, x.dtype, weights.up.rows, x.cols);
  weights.gate =
      packed_of({operation, "gate_packed", gate_packed}, x.dtype, weights.up.rows, x.cols);
  return weights;
}

FfnWeights plain_weights(const char* operation, const ConstMatrixView& x, const Tensor& up_packed,
                         const Tensor& down) {
  FfnWeights weights;
  weights.down = matrix_of({operation, "down", down}, x.dtype, -1, x.cols);
  weights.gate = packed_of({operation, "up_packed", up_packed}, x.dtype, weights.down.rows, x.cols);
  return weights;
}

FfnWeights screened_weights(const char* operation, const ConstMatrixView& x, const Tensor& gate,
                            const Tensor& screen, const std::optional<Tensor>& up,
                            const Tensor& down) {
  FfnWeights weights;
  weights.gate_rows = matrix_of({operation, "gate", gate}, x.dtype, -1, x.cols);
  const std::int64_t hidden = weights.gate_rows.rows;
  if (hidden < 1 || x.cols < 1) {
    fail(operation, "gate", "expected at least one row and column, got " + shape_of(gate));
  }
  weights.gate = {nullptr, x.dtype, hidden, x.cols};
  if (up.has_value()) weights.up = matrix_of({operation, "up", *up}, x.dtype, hidden, x.cols);
  weights.down = matrix_of({operation, "down", down}, x.dtype, hidden, x.cols);
  weights.screen = screen_of({operation, "screen", screen}, hidden, x.cols);
  return weights;
}

Tensor run(const char* operation, const Tensor& x, const Rows& rows, const FfnWeights& weights,
           const ActivationSpec& activation, FfnStats* stats) {
  const auto sizes = x.sizes();
  Tensor y =
      new_empty({operation, "y", x}, {sizes.begin(), sizes.end()}, scalar_type_of(rows.view.dtype));
  twell::ffn(cpu_context(), rows.view, weights, activation,
             mutable_matrix(y, rows.view.dtype, rows.view.rows, rows.view.cols), stats);
  return y;
}

struct Counted {
  Tensor y, row_nnz, neuron_counts;
  std::int64_t candidates = 0;

  std::tuple<Tensor, Tensor, Tensor> nonzeros() const { return {y, row_nnz, neuron_counts}; }
};
Counted run_with_stats(const char* operation, const Tensor& x, const Rows& rows,
                       const FfnWeights& weights, const ActivationSpec& activation) {
  Counted out{{},
              new_zeros({operation, "row_nnz", x}, leading_shape(x), ScalarType::Int),
              new_zeros({operation, "neuron_counts", x}, {weights.down.rows}, ScalarType::Long)};
  FfnStats stats;
  stats.row_nnz = static_cast<std::int32_t*>(out.row_nnz.mutable_data_ptr());
  stats.neuron_counts = static_cast<std::int64_t*>(out.neuron_counts.mutable_data_ptr());
  out.y = run(operation, x, rows, weights, activation, &stats);
  out.candidates = stats.candidates;
  return out;
}

}  // namespace

Tensor gated_ffn(const Tensor& x, const Tensor& gate_packed, const Tensor& up, const Tensor& down,
                 const std::string& activation, double threshold) {
  constexpr const char* kOperation = "gated_ffn";
  const Rows rows = rows_of({kOperation, "x", x});
  return run(kOperation, x, rows, gated_weights(kOperation, rows.view, gate_packed, up, down),
             activation_of(kOperation, activation, threshold), nullptr);
}

std::tuple<Tensor, Tensor, Tensor> gated_ffn_stats(const Tensor& x, const Tensor& gate_packed,
                                                   const Tensor& up, const Tensor& down,
                                                   const std::string& activation,
                                                   double threshold) {
  constexpr const char* kOperation = "gated_ffn_stats";
  const Rows rows = rows_of({kOperation, "x", x});
  return run_with_stats(kOperation, x, rows,
                        gated_weights(kOperation, rows.view, gate_packed, up, down),
                        activation_of(kOperation, activation, threshold))
      .nonzeros();
}

Tensor ffn(const Tensor& x, const Tensor& up_packed, const Tensor& down,
           const std::string& activation, double threshold) {
  constexpr const char* kOperation = "ffn";
  const Rows rows = rows_of({kOperation, "x", x});
  return run(kOperation, x, rows, plain_weights(kOperation, rows.view, up_packed, down),
             activation_of(kOperation, activation, threshold), nullptr);
}

std::tuple<Tensor, Tensor, Tensor> ffn_stats(const Tensor& x, const Tensor& up_packed,
                                             const Tensor& down, const std::string& activation,
                                             double threshold) {
  constexpr const char* kOperation = "ffn_stats";
  const Rows rows = rows_of({kOperation, "x", x});
  return run_with_stats(kOperation, x, rows, plain_weights(kOperation, rows.view, up_packed, down),
                        activation_of(kOperation, activation, threshold))
      .nonzeros();
}

Tensor screened_ffn(const Tensor& x, const Tensor& gate, const Tensor& screen,
                    const std::optional<Tensor>& up, const Tensor& down,
                    const std::string& activation, double threshold) {
  constexpr const char* kOperation = "screened_ffn";
  const Rows rows = rows_of({kOperation, "x", x});
  return run(kOperation, x, rows, screened_weights(kOperation, rows.view, gate, screen, up, down),
             activation_of(kOperation, activation, threshold), nullptr);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> screened_ffn_stats(
    const Tensor& x, const Tensor& gate, const Tensor& screen, const std::optional<Tensor>& up,
    const Tensor& down, const std::string& activation, double threshold) {
  constexpr const char* kOperation = "screened_ffn_stats";
  const Rows rows = rows_of({kOperation, "x", x});
  const Counted counted = run_with_stats(
      kOperation, x, rows, screened_weights(kOperation, rows.view, gate, screen, up, down),
      activation_of(kOperation, activation, threshold));
  Tensor candidates = new_empty({kOperation, "candidates", x}, {}, ScalarType::Long);
  *static_cast<std::int64_t*>(candidates.mutable_data_ptr()) = counted.candidates;
  return {counted.y, counted.row_nnz, counted.neuron_counts, candidates};
}

}  // namespace twell::torch_ops
