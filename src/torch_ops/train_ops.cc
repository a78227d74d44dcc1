#include "torch_ops/train_ops.h"

#include <algorithm>
#include <array>
#include <span>

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
                        std::span<const Tensor> kept) {
  require_kept(operation, kept);
  const Tensor &offsets = kept[0], &neurons = kept[1], &values = kept[2];
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

// Rounds f32 sums to the bf16 of `out`, which it returns.
Tensor narrowed(const Tensor& sums, const Tensor& out) {
  const auto* from = static_cast<const float*>(sums.const_data_ptr());
  auto* to = static_cast<bf16*>(out.mutable_data_ptr());
  std::transform(from, from + sums.numel(), to, [](float value) { return bf16(value); });
  return out;
}

struct Backward {
  const LayerArguments layer;
  const Tensor &dy, &x;
  const std::vector<Tensor>& kept;
  const std::optional<Tensor>& l1_grad;

  Argument argument(const char* name, const Tensor& tensor) const {
    return {layer.operation, name, tensor};
  }

  // Returns dx; writes or adds the other gradients.
  Tensor run(const OptionalTensors& gradients, bool add) const {
    const Rows rows = rows_of(argument("x", x));
    const Rows dy_rows = rows_of(argument("dy", dy));
    FfnBackward in;
    in.x = rows.view;
    in.dy = dy_rows.view;
    in.gate = matrix_of(argument("gate", layer.gate));
    if (layer.up.has_value()) in.up = matrix_of(argument("up", *layer.up));
    in.down = matrix_of(argument("down", layer.down));
    const FfnShape shape = {in.gate.cols, in.gate.rows, layer.up.has_value(), in.x.dtype};
    in.pattern = lists_of(layer.operation, shape, in.x.rows, kept);
    require_pattern(layer.operation, in.pattern);
    require_hot(layer.operation, layer.hot, in.down.rows);
    const CpuForm form(layer, shape.dtype, in.down.rows, in.down.cols);
    in.form = form.get();
    if (l1_grad.has_value()) {
      require_list(argument("l1_grad", *l1_grad), ScalarType::Float, {});
      in.l1 = *static_cast<const float*>(l1_grad->const_data_ptr());
    }
    Tensor dx = new_rows(argument("x", x), in.gate.cols, shape.dtype);
    FfnGradients out;
    out.accumulate = add;
    out.dx = mutable_matrix(dx, shape.dtype, in.x.rows, in.gate.cols);
    const auto matrix = [&](std::size_t at) {
      const Tensor& tensor = required(layer.operation, gradient_name(at), gradients, at);
      const ConstMatrixView view = matrix_of(argument(gradient_name(at), tensor));
      return MatrixView(tensor.mutable_data_ptr(), view.dtype, view.rows, view.cols,
                        view.row_stride);
    };
    out.gate = matrix(0);
    if (entry(gradients, 1).has_value()) out.up = matrix(1);
    out.down = matrix(2);
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      const std::optional<Tensor>& tensor = entry(gradients, kMatrices + i);
      if (!tensor.has_value()) continue;
      const std::int64_t size = kFormVectors[i].entries(in.down.rows, in.down.cols);
      require_list(argument(gradient_name(kMatrices + i), *tensor), ScalarType::Float, {size}, "");
      out.vectors[i] = {static_cast<float*>(tensor->mutable_data_ptr()),
                        static_cast<std::size_t>(size)};
    }
    twell::ffn_backward(cpu_context(), in, out);
    return dx;
  }
};

}  // namespace

TrainedFfn ffn_train(const Tensor& x, const OptionalTensors& weights,
                     const std::optional<Tensor>& screen, const std::string& form,
                     std::int64_t hot) {
  constexpr const char* kOperation = "ffn_train";
  const LayerArguments layer(kOperation, weights, form, hot);
  const Rows rows = rows_of({kOperation, "x", x});
  const ConstMatrixView gate = matrix_of({kOperation, "gate", layer.gate});
  const ConstMatrixView down = matrix_of({kOperation, "down", layer.down});
  require_hot(kOperation, hot, down.rows);
  FfnWeights views = {.gate = gate, .up = {}, .down = down};
  if (layer.up.has_value()) views.up = matrix_of({kOperation, "up", *layer.up});
  std::optional<PackedWeight> packed;
  if (screen.has_value()) {
    views.screen = screen_of({kOperation, "screen", *screen}, gate.rows, gate.cols);
  } else {
    views.gate = packed.emplace(gate).view();
  }
  const FfnShape shape = views.shape(rows.view.dtype);
  const CpuForm cpu_form(layer, shape.dtype, down.rows, down.cols);
  const std::int64_t m = rows.view.rows;
  const std::int64_t places = m * shape.neurons;
  Tensor y = new_rows({kOperation, "x", x}, down.cols, shape.dtype);
  Tensor l1 = new_empty({kOperation, "l1", x}, {}, ScalarType::Float);
  Tensor row_nnz = new_empty({kOperation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  Tensor neuron_nnz = new_empty({kOperation, "neuron_nnz", x}, {shape.neurons}, ScalarType::Long);
  Tensor offsets = new_empty({kOperation, "offsets", x}, {m + 1}, ScalarType::Long);
  Tensor neurons = new_empty({kOperation, "neurons", x}, {places}, ScalarType::Int);
  Tensor values = new_empty({kOperation, "values", x}, {shape.gated ? 2 : 1, places},
                            scalar_type_of(shape.dtype));
  FfnPattern pattern(lists_of(kOperation, shape, m, std::array{offsets, neurons, values}));
  FfnCounts counts;
  twell::ffn_forward(cpu_context(), rows.view, views, cpu_form.get(),
                     mutable_matrix(y, shape.dtype, m, down.cols), pattern, &counts);
  *static_cast<float*>(l1.mutable_data_ptr()) = static_cast<float>(counts.l1);
  std::copy(counts.row_nnz.begin(), counts.row_nnz.end(),
            static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()));
  std::copy(counts.neuron_nnz.begin(), counts.neuron_nnz.end(),
            static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()));
  return {y, l1, row_nnz, neuron_nnz, offsets, neurons, values};
}

GradientTensors ffn_train_backward(const Tensor& dy, const Tensor& x,
                                   const OptionalTensors& weights, const std::vector<Tensor>& kept,
                                   const std::optional<Tensor>& l1_grad, const std::string& form,
                                   std::int64_t hot) {
  constexpr const char* kOperation = "ffn_train_backward";
  const Backward call{{kOperation, weights, form, hot}, dy, x, kept, l1_grad};
  const ScalarType type = call.layer.gate.scalar_type();
  const auto like = [&](std::size_t at, ScalarType of) {
    const Tensor& weight = *weights[at];
    const auto sizes = weight.sizes();
    return new_empty({kOperation, gradient_name(at), weight}, {sizes.begin(), sizes.end()}, of);
  };
  OptionalTensors gradients(kWeights);
  for (std::size_t at = 0; at < weights.size(); ++at) {
    if (weights[at].has_value())
      gradients[at] = like(at, at < kMatrices ? type : ScalarType::Float);
  }
  std::array<Tensor, 1 + kWeights> out;
  out[0] = call.run(gradients, false);
  const auto gradient = [&](std::size_t at) {
    const std::optional<Tensor>& made = gradients[at];
    if (!made.has_value()) return new_empty({kOperation, gradient_name(at), x}, {0}, type);
    const ScalarType wanted = at < kMatrices ? type : weights[at]->scalar_type();
    return made->scalar_type() == wanted ? *made : narrowed(*made, like(at, wanted));
  };
  for (std::size_t at = 0; at < kWeights; ++at) out[1 + at] = gradient(at);
  return std::tuple_cat(out);
}

Tensor ffn_train_backward_add(const Tensor& dy, const Tensor& x, const OptionalTensors& weights,
                              const std::vector<Tensor>& kept, const std::optional<Tensor>& l1_grad,
                              const OptionalTensors& gradients, const std::string& form,
                              std::int64_t hot) {
  const Backward call{{"ffn_train_backward_add", weights, form, hot}, dy, x, kept, l1_grad};
  return call.run(gradients, true);
}

}  // namespace twell::torch_ops
