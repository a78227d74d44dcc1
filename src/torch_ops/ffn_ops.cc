#include "torch_ops/ffn_ops.h"

#include <algorithm>

#include "torch_ops/cpu_context.h"

namespace twell::torch_ops {
namespace {

Argument argument_of(const LayerArguments& layer, const char* name, const Tensor& tensor) {
  return {layer.operation, name, tensor};
}

FfnWeights weights_of(const LayerArguments& layer, const std::optional<Tensor>& screen) {
  const Argument gate = argument_of(layer, "gate", layer.gate);
  FfnWeights out = {.gate = screen.has_value() ? weight_of(gate) : packed_of(gate),
                    .up = {},
                    .down = weight_of(argument_of(layer, "down", layer.down), ScaledBy::column)};
  if (layer.up.has_value()) out.up = weight_of(argument_of(layer, "up", *layer.up));
  if (screen.has_value()) {
    out.screen = screen_of(argument_of(layer, "screen", *screen), out.gate.rows, out.gate.cols);
  }
  return out;
}

Tensor run(const LayerArguments& layer, const Tensor& x, const std::optional<Tensor>& screen,
           FfnCounts* counts) {
  const Argument input = argument_of(layer, "x", x);
  const Rows rows = rows_of(input);
  const FfnWeights weights = weights_of(layer, screen);
  require_hot(layer.operation, layer.hot, weights.down.rows);
  const CpuForm form(layer, rows.view.dtype, weights.down.rows, weights.down.cols);
  Tensor y = new_rows(input, weights.down.cols, rows.view.dtype);
  twell::ffn(cpu_context(), rows.view, weights, form.get(),
             mutable_matrix(y, rows.view.dtype, rows.view.rows, weights.down.cols), counts);
  return y;
}

}  // namespace

Tensor ffn(const Tensor& x, const OptionalTensors& weights, const std::optional<Tensor>& screen,
           const std::string& form, std::int64_t hot) {
  return run({"ffn", weights, form, hot}, x, screen, nullptr);
}

FfnStats ffn_stats(const Tensor& x, const OptionalTensors& weights,
                   const std::optional<Tensor>& screen, const std::string& form, std::int64_t hot) {
  const char* const operation = "ffn_stats";
  FfnCounts counts;
  Tensor y = run({operation, weights, form, hot}, x, screen, &counts);
  Tensor row_nnz = new_empty({operation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  Tensor neuron_nnz =
      new_empty({operation, "neuron_nnz", x}, {std::ssize(counts.neuron_nnz)}, ScalarType::Long);
  Tensor candidates = new_empty({operation, "candidates", x}, {}, ScalarType::Long);
  std::copy(counts.row_nnz.begin(), counts.row_nnz.end(),
            static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()));
  std::copy(counts.neuron_nnz.begin(), counts.neuron_nnz.end(),
            static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()));
  *static_cast<std::int64_t*>(candidates.mutable_data_ptr()) = counts.candidates;
  return {y, row_nnz, neuron_nnz, candidates};
}

}  // namespace twell::torch_ops
