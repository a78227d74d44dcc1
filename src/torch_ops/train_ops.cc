#include "torch_ops/train_ops.h"

#include <algorithm>

#include "torch_ops/cpu_context.h"
#include "twell/train.h"

namespace twell::torch_ops {
namespace {

void require_list(const Argument& argument, ScalarType type, const std::vector<std::int64_t>& shape,
                  const char* origin = ", as ffn_train makes it") {
  require_device(argument);
  const Tensor& tensor = argument.tensor;
  const auto sizes = tensor.sizes();
  if (tensor.scalar_type() == type && tensor.is_contiguous() &&
      std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end())) {
    return;
  }
  fail(argument.operation, argument.name,
       std::string("expected ") + torch::headeronly::toString(type) + " " +
           list_of(shape.data(), shape.size()) + origin + ", got " +
           torch::headeronly::toString(tensor.scalar_type()) + " " + shape_of(tensor));
}

// The pattern's tensors as libtwell's lists. They are written through by ffn_train alone.
FfnPatternView lists_of(const char* operation, const FfnShape& shape, std::int64_t rows,
                        const Tensor& offsets, const Tensor& neurons, const Tensor& values) {
  const std::int64_t places = rows * shape.neurons;
  require_list({operation, "offsets", offsets}, ScalarType::Long, {rows + 1});
  require_list({operation, "neurons", neurons}, ScalarType::Int, {places});
  require_list({operation, "values", values}, scalar_type_of(shape.dtype),
               {shape.gated ? 2 : 1, places});
  FfnPatternView out;
  out.rows = rows;
  out.cols = shape.neurons;
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
    if (count < 0 || count > pattern.cols) refuse("offsets", r);
  }
  // Without an early exit, so that the comparisons are vectors.
  const auto ascends = [&pattern](std::int64_t r) {
    const std::int32_t* neurons = pattern.neurons + pattern.offsets[r];
    const std::int64_t count = pattern.offsets[r + 1] - pattern.offsets[r];
    if (count == 0) return true;
    int wrong = 0;
    for (std::int64_t i = 1; i < count; ++i) wrong |= neurons[i] <= neurons[i - 1];
    return wrong == 0 && neurons[0] >= 0 && neurons[count - 1] < pattern.cols;
  };
  std::int64_t first = pattern.rows;
  const int threads = cpu_context().threads();
#pragma omp parallel for num_threads(threads) schedule(static) reduction(min : first)
  for (std::int64_t r = 0; r < pattern.rows; ++r) {
    if (!ascends(r)) first = std::min(first, r);
  }
  if (first < pattern.rows) refuse("neurons", first);
}

// The gradients of a form's vectors: f32, [neurons] and of down's bias [columns]; or none.
struct VectorGradients {
  std::optional<Tensor> gate_bias, up_bias, down_bias, norm_weight;
};

// Rounds f32 sums to the bf16 of `out`, which it returns.
Tensor narrowed(const Tensor& sums, const Tensor& out) {
  const auto* from = static_cast<const float*>(sums.const_data_ptr());
  auto* to = static_cast<bf16*>(out.mutable_data_ptr());
  std::transform(from, from + sums.numel(), to, [](float value) { return bf16(value); });
  return out;
}

struct Backward {
  const char* operation;
  const FormArguments& form;
  const Tensor &dy, &x, &gate;
  const std::optional<Tensor>& up;
  const Tensor &down, &offsets, &neurons, &values;
  const std::optional<Tensor>& l1_grad;

  // Returns dx; writes or adds the other gradients.
  Tensor run(const Tensor& dgate, const std::optional<Tensor>& dup, const Tensor& ddown,
             const VectorGradients& vectors, bool add) const {
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
    require_hot(operation, form.hot, in.down.rows);
    const CpuForm cpu_form(operation, form, shape.dtype, in.down.rows, in.down.cols);
    in.form = cpu_form.get();
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
    const auto vector_gradient = [&](const char* name, const std::optional<Tensor>& tensor,
                                     std::int64_t size) -> std::span<float> {
      if (!tensor.has_value()) return {};
      require_list({operation, name, *tensor}, ScalarType::Float, {size}, "");
      return {static_cast<float*>(tensor->mutable_data_ptr()), static_cast<std::size_t>(size)};
    };
    out.gate_bias = vector_gradient("dgate_bias", vectors.gate_bias, in.down.rows);
    out.up_bias = vector_gradient("dup_bias", vectors.up_bias, in.down.rows);
    out.down_bias = vector_gradient("ddown_bias", vectors.down_bias, in.down.cols);
    out.norm_weight = vector_gradient("dnorm_weight", vectors.norm_weight, in.down.rows);
    twell::ffn_backward(cpu_context(), in, out);
    return dx;
  }
};

}  // namespace

TrainedFfn ffn_train(const FormArguments& form, const Tensor& x, const Tensor& gate,
                     const std::optional<Tensor>& up, const Tensor& down,
                     const std::optional<Tensor>& screen) {
  constexpr const char* kOperation = "ffn_train";
  const Rows rows = rows_of({kOperation, "x", x});
  const ConstMatrixView gate_rows = matrix_of({kOperation, "gate", gate});
  const ConstMatrixView down_rows = matrix_of({kOperation, "down", down});
  require_hot(kOperation, form.hot, down_rows.rows);
  const auto gate_of = [&]() -> std::variant<PackedWeight, ScreenedGate> {
    if (!screen.has_value()) return PackedWeight(gate_rows);
    const Argument argument{kOperation, "screen", *screen};
    return ScreenedGate{gate_rows, screen_of(argument, gate_rows.rows, gate_rows.cols)};
  };
  FfnWeights weights = {gate_of(), {}, down_rows};
  if (up.has_value()) weights.up = matrix_of({kOperation, "up", *up});
  const FfnShape shape = weights.shape(rows.view.dtype);
  const CpuForm cpu_form(kOperation, form, shape.dtype, down_rows.rows, down_rows.cols);
  const std::int64_t m = rows.view.rows;
  const std::int64_t places = m * shape.neurons;
  Tensor y = new_rows({kOperation, "x", x}, down_rows.cols, shape.dtype);
  Tensor l1 = new_empty({kOperation, "l1", x}, {}, ScalarType::Float);
  Tensor row_nnz = new_empty({kOperation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  Tensor neuron_nnz = new_empty({kOperation, "neuron_nnz", x}, {shape.neurons}, ScalarType::Long);
  Tensor offsets = new_empty({kOperation, "offsets", x}, {m + 1}, ScalarType::Long);
  Tensor neurons = new_empty({kOperation, "neurons", x}, {places}, ScalarType::Int);
  Tensor values = new_empty({kOperation, "values", x}, {shape.gated ? 2 : 1, places},
                            scalar_type_of(shape.dtype));
  FfnPattern pattern(lists_of(kOperation, shape, m, offsets, neurons, values));
  FfnCounts counts;
  twell::ffn_forward(cpu_context(), rows.view, weights, cpu_form.get(),
                     mutable_matrix(y, shape.dtype, m, down_rows.cols), pattern, &counts);
  *static_cast<float*>(l1.mutable_data_ptr()) = static_cast<float>(counts.l1);
  std::copy(counts.row_nnz.begin(), counts.row_nnz.end(),
            static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()));
  std::copy(counts.neuron_nnz.begin(), counts.neuron_nnz.end(),
            static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()));
  return {y, l1, row_nnz, neuron_nnz, offsets, neurons, values};
}

FfnGradientTensors ffn_train_backward(const FormArguments& form, const Tensor& dy, const Tensor& x,
                                      const Tensor& gate, const std::optional<Tensor>& up,
                                      const Tensor& down, const Tensor& offsets,
                                      const Tensor& neurons, const Tensor& values,
                                      const std::optional<Tensor>& l1_grad) {
  const Backward call{
      "ffn_train_backward", form, dy, x, gate, up, down, offsets, neurons, values, l1_grad};
  const auto like = [&](const char* name, const Tensor& tensor, ScalarType type) {
    const auto sizes = tensor.sizes();
    return new_empty({call.operation, name, tensor}, {sizes.begin(), sizes.end()}, type);
  };
  const ScalarType type = gate.scalar_type();
  Tensor dgate = like("dgate", gate, type);
  std::optional<Tensor> dup;
  if (up.has_value()) dup = like("dup", *up, type);
  Tensor ddown = like("ddown", down, type);
  const auto sums = [&](const char* name, const std::optional<Tensor>& vector) {
    return vector.has_value() ? std::optional(like(name, *vector, ScalarType::Float))
                              : std::nullopt;
  };
  const VectorGradients vectors = {
      sums("dgate_bias", form.gate_bias), sums("dup_bias", form.up_bias),
      sums("ddown_bias", form.down_bias), sums("dnorm_weight", form.norm_weight)};
  Tensor dx = call.run(dgate, dup, ddown, vectors, false);
  const auto none = [&](const char* name) {
    return new_empty({call.operation, name, x}, {0}, type);
  };
  const auto gradient = [&](const char* name, const std::optional<Tensor>& sum,
                            const std::optional<Tensor>& vector) {
    if (!sum.has_value()) return none(name);
    const ScalarType wanted = vector->scalar_type();
    return wanted == ScalarType::Float ? *sum : narrowed(*sum, like(name, *vector, wanted));
  };
  return {dx,
          dgate,
          dup.has_value() ? *dup : none("dup"),
          ddown,
          gradient("dgate_bias", vectors.gate_bias, form.gate_bias),
          gradient("dup_bias", vectors.up_bias, form.up_bias),
          gradient("ddown_bias", vectors.down_bias, form.down_bias),
          gradient("dnorm_weight", vectors.norm_weight, form.norm_weight)};
}

Tensor ffn_train_backward_add(const FormArguments& form, const Tensor& dy, const Tensor& x,
                              const Tensor& gate, const std::optional<Tensor>& up,
                              const Tensor& down, const Tensor& offsets, const Tensor& neurons,
                              const Tensor& values, const std::optional<Tensor>& l1_grad,
                              const Tensor& dgate, const std::optional<Tensor>& dup,
                              const Tensor& ddown, const std::optional<Tensor>& dgate_bias,
                              const std::optional<Tensor>& dup_bias,
                              const std::optional<Tensor>& ddown_bias,
                              const std::optional<Tensor>& dnorm_weight) {
  return Backward{
      "ffn_train_backward_add", form, dy, x, gate, up, down, offsets, neurons, values, l1_grad}
      .run(dgate, dup, ddown, {dgate_bias, dup_bias, ddown_bias, dnorm_weight}, true);
}

}  // namespace twell::torch_ops
