#include "torch_ops/train_ops.h"

#include <algorithm>

#include "torch_ops/cpu_context.h"
#include "twell/train.h"

namespace twell::torch_ops {
namespace {

void require_list(const Argument& argument, ScalarType type,
                  const std::vector<std::int64_t>& shape) {
  require_device(argument);
  const Tensor& tensor = argument.tensor;
  const auto sizes = tensor.sizes();
  if (tensor.scalar_type() == type && tensor.is_contiguous() &&
      std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end())) {
    return;
  }
  fail(argument.operation, argument.name,
       std::string("expected ") + torch::headeronly::toString(type) + " " +
           list_of(shape.data(), shape.size()) + ", as ffn_train makes it, got " +
           torch::headeronly::toString(tensor.scalar_type()) + " " + shape_of(tensor));
}

// The pattern's tensors as libtwell's lists. They are written through by ffn_train alone.
FfnPatternView lists_of(const char* operation, const FfnShape& shape, std::int64_t rows,
                        const Tensor& offsets, const Tensor& neurons, const Tensor& values) {
  const std::int64_t places = rows * shape.hidden;
  require_list({operation, "offsets", offsets}, ScalarType::Long, {rows + 1});
  require_list({operation, "neurons", neurons}, ScalarType::Int, {places});
  require_list({operation, "values", values}, scalar_type_of(shape.dtype),
               {shape.gated ? 2 : 1, places});
  FfnPatternView out;
  out.rows = rows;
  out.hidden = shape.hidden;
  out.dtype = shape.dtype;
  out.offsets = static_cast<const std::int64_t*>(offsets.const_data_ptr());
  out.neurons = static_cast<const std::int32_t*>(neurons.const_data_ptr());
  out.v = values.const_data_ptr();
  if (shape.gated) {
    out.u = static_cast<const std::byte*>(out.v) +
            static_cast<std::size_t>(places) * size_of(shape.dtype);
  }
  return out;
}

// Lists that ffn_train did not make would be read out of bounds.
void require_pattern(const char* operation, const FfnPatternView& pattern) {
  const auto refuse = [operation](const char* list, std::int64_t row) {
    fail(operation, list,
         "expected what ffn_train returned; row " + std::to_string(row) +
             " has no ascending neurons of the layer");
  };
  if (pattern.offsets[0] != 0) refuse("offsets", 0);
  for (std::int64_t r = 0; r < pattern.rows; ++r) {
    const std::int64_t count = pattern.offsets[r + 1] - pattern.offsets[r];
    if (count < 0 || count > pattern.hidden) refuse("offsets", r);
  }
  // Without an early exit, so that the comparisons are vectors.
  const auto ascends = [&pattern](std::int64_t r) {
    const std::int32_t* neurons = pattern.neurons + pattern.offsets[r];
    const std::int64_t count = pattern.offsets[r + 1] - pattern.offsets[r];
    if (count == 0) return true;
    int wrong = 0;
    for (std::int64_t i = 1; i < count; ++i) wrong |= neurons[i] <= neurons[i - 1];
    return wrong == 0 && neurons[0] >= 0 && neurons[count - 1] < pattern.hidden;
  };
  std::int64_t first = pattern.rows;
  const int threads = cpu_context().threads();
#pragma omp parallel for num_threads(threads) schedule(static) reduction(min : first)
  for (std::int64_t r = 0; r < pattern.rows; ++r) {
    if (!ascends(r)) first = std::min(first, r);
  }
  if (first < pattern.rows) refuse("neurons", first);
}

struct Backward {
  const char* operation;
  const Tensor &dy, &x, &gate;
  const std::optional<Tensor>& up;
  const Tensor &down, &offsets, &neurons, &values;
  const std::optional<Tensor>& l1_grad;
  const std::string& activation;
  double threshold;

  // Returns dx; writes or adds the weight gradients.
  Tensor run(const Tensor& dgate, const std::optional<Tensor>& dup, const Tensor& ddown,
             bool add) const {
    const Rows rows = rows_of({operation, "x", x});
    const Rows dy_rows = rows_of({operation, "dy", dy});
    FfnBackward in;
    in.x = rows.view;
    in.dy = dy_rows.view;
    in.gate = matrix_of({operation, "gate", gate});
    if (up.has_value()) in.up = matrix_of({operation, "up", *up});
    in.down = matrix_of({operation, "down", down});
    const FfnShape shape = {in.gate.cols, in.gate.rows, up.has_value(), in.x.dtype};
    in.pattern = lists_of(operation, shape, in.x.rows, offsets, neurons, values);
    require_pattern(operation, in.pattern);
    in.form = activation_of(operation, activation, threshold);
    if (l1_grad.has_value()) {
      require_list({operation, "l1_grad", *l1_grad}, ScalarType::Float, {});
      in.l1 = *static_cast<const float*>(l1_grad->const_data_ptr());
    }
    Tensor dx = new_rows({operation, "x", x}, in.gate.cols, shape.dtype);
    FfnGradients out;
    out.dx = mutable_matrix(dx, shape.dtype, in.x.rows, in.gate.cols);
    const auto gradient = [&](const char* name, const Tensor& tensor) {
      const ConstMatrixView view = matrix_of({operation, name, tensor});
      return MatrixView(tensor.mutable_data_ptr(), view.dtype, view.rows, view.cols,
                        view.row_stride);
    };
    out.gate = gradient("dgate", dgate);
    if (dup.has_value()) out.up = gradient("dup", *dup);
    out.down = gradient("ddown", ddown);
    out.accumulate = add;
    twell::ffn_backward(cpu_context(), in, out);
    return dx;
  }
};

}  // namespace

TrainedFfn ffn_train(const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up,
                     const Tensor& down, const std::optional<Tensor>& screen,
                     const std::string& activation, double threshold, std::int64_t hot) {
  constexpr const char* kOperation = "ffn_train";
  const Rows rows = rows_of({kOperation, "x", x});
  const ConstMatrixView gate_rows = matrix_of({kOperation, "gate", gate});
  const ConstMatrixView down_rows = matrix_of({kOperation, "down", down});
  const ActivationSpec spec = activation_of(kOperation, activation, threshold);
  require_hot(kOperation, hot, down_rows.rows);
  const auto gate_of = [&]() -> std::variant<PackedWeight, ScreenedGate> {
    if (!screen.has_value()) return PackedWeight(gate_rows);
    const Argument argument{kOperation, "screen", *screen};
    return ScreenedGate{gate_rows, screen_of(argument, gate_rows.rows, gate_rows.cols)};
  };
  FfnWeights weights = {gate_of(), {}, down_rows};
  if (up.has_value()) weights.up = matrix_of({kOperation, "up", *up});
  const FfnShape shape = weights.shape(rows.view.dtype);
  const std::int64_t m = rows.view.rows;
  const std::int64_t places = m * shape.hidden;
  Tensor y = new_rows({kOperation, "x", x}, down_rows.cols, shape.dtype);
  Tensor l1 = new_empty({kOperation, "l1", x}, {}, ScalarType::Float);
  Tensor row_nnz = new_empty({kOperation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  Tensor neuron_nnz = new_empty({kOperation, "neuron_nnz", x}, {shape.hidden}, ScalarType::Long);
  Tensor offsets = new_empty({kOperation, "offsets", x}, {m + 1}, ScalarType::Long);
  Tensor neurons = new_empty({kOperation, "neurons", x}, {places}, ScalarType::Int);
  Tensor values = new_empty({kOperation, "values", x}, {shape.gated ? 2 : 1, places},
                            scalar_type_of(shape.dtype));
  FfnPattern pattern(lists_of(kOperation, shape, m, offsets, neurons, values));
  FfnCounts counts;
  twell::ffn_forward(cpu_context(), rows.view, weights, spec,
                     mutable_matrix(y, shape.dtype, m, down_rows.cols), pattern, &counts);
  *static_cast<float*>(l1.mutable_data_ptr()) = static_cast<float>(counts.l1);
  std::copy(counts.row_nnz.begin(), counts.row_nnz.end(),
            static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()));
  std::copy(counts.neuron_nnz.begin(), counts.neuron_nnz.end(),
            static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()));
  return {y, l1, row_nnz, neuron_nnz, offsets, neurons, values};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> ffn_train_backward(
    const Tensor& dy, const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up,
    const Tensor& down, const Tensor& offsets, const Tensor& neurons, const Tensor& values,
    const std::optional<Tensor>& l1_grad, const std::string& activation, double threshold,
    std::int64_t hot) {
  require_hot("ffn_train_backward", hot, down.size(0));
  const Backward call{
      "ffn_train_backward", dy,       x, gate, up, down, offsets, neurons, values, l1_grad,
      activation,           threshold};
  const ScalarType type = gate.scalar_type();
  const auto like = [&](const char* name, const Tensor& weight) {
    const auto sizes = weight.sizes();
    return new_empty({call.operation, name, weight}, {sizes.begin(), sizes.end()}, type);
  };
  Tensor dgate = like("dgate", gate);
  std::optional<Tensor> dup;
  if (up.has_value()) dup = like("dup", *up);
  Tensor ddown = like("ddown", down);
  Tensor dx = call.run(dgate, dup, ddown, false);
  return {dx, dgate, dup.has_value() ? *dup : new_empty({call.operation, "dup", x}, {0}, type),
          ddown};
}

Tensor ffn_train_backward_add(const Tensor& dy, const Tensor& x, const Tensor& gate,
                              const std::optional<Tensor>& up, const Tensor& down,
                              const Tensor& offsets, const Tensor& neurons, const Tensor& values,
                              const std::optional<Tensor>& l1_grad, const Tensor& dgate,
                              const std::optional<Tensor>& dup, const Tensor& ddown,
                              const std::string& activation, double threshold, std::int64_t hot) {
  require_hot("ffn_train_backward_add", hot, down.size(0));
  return Backward{"ffn_train_backward_add",
                  dy,
                  x,
                  gate,
                  up,
                  down,
                  offsets,
                  neurons,
                  values,
                  l1_grad,
                  activation,
                  threshold}
      .run(dgate, dup, ddown, true);
}

}  // namespace twell::torch_ops
