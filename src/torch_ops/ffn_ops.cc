#include "torch_ops/ffn_ops.h"

#include <algorithm>

#include "torch_ops/cpu_context.h"

namespace twell::torch_ops {
namespace {

struct Call {
  const char* operation;
  const FormArguments& form;
  const Tensor& x;
  const Tensor& gate;
  const std::optional<Tensor>& up;
  const Tensor& down;
  const std::optional<Tensor>& screen;

  Argument argument(const char* name, const Tensor& tensor) const {
    return {operation, name, tensor};
  }
  FfnWeights weights() const {
    const Argument stored = argument("gate", gate);
    FfnWeights out = {.gate = screen.has_value() ? weight_of(stored) : packed_of(stored),
                      .up = {},
                      .down = weight_of(argument("down", down), ScaledBy::column)};
    if (up.has_value()) out.up = weight_of(argument("up", *up));
    if (screen.has_value()) {
      out.screen = screen_of(argument("screen", *screen), out.gate.rows, out.gate.cols);
    }
    return out;
  }

  Tensor run(FfnCounts* counts) const {
    const Rows rows = rows_of(argument("x", x));
    const FfnWeights all = weights();
    require_hot(operation, form.hot, all.down.rows);
    const CpuForm cpu_form(operation, form, rows.view.dtype, all.down.rows, all.down.cols);
    Tensor y = new_rows(argument("x", x), all.down.cols, rows.view.dtype);
    twell::ffn(cpu_context(), rows.view, all, cpu_form.get(),
               mutable_matrix(y, rows.view.dtype, rows.view.rows, all.down.cols), counts);
    return y;
  }
};

}  // namespace

Tensor ffn(const FormArguments& form, const Tensor& x, const Tensor& gate,
           const std::optional<Tensor>& up, const Tensor& down,
           const std::optional<Tensor>& screen) {
  return Call{"ffn", form, x, gate, up, down, screen}.run(nullptr);
}

FfnStats ffn_stats(const FormArguments& form, const Tensor& x, const Tensor& gate,
                   const std::optional<Tensor>& up, const Tensor& down,
                   const std::optional<Tensor>& screen) {
  const Call call{"ffn_stats", form, x, gate, up, down, screen};
  FfnCounts counts;
  Tensor y = call.run(&counts);
  Tensor row_nnz = new_empty({call.operation, "row_nnz", x}, leading_of(x), ScalarType::Int);
  Tensor neuron_nnz = new_empty({call.operation, "neuron_nnz", x}, {std::ssize(counts.neuron_nnz)},
                                ScalarType::Long);
  Tensor candidates = new_empty({call.operation, "candidates", x}, {}, ScalarType::Long);
  std::copy(counts.row_nnz.begin(), counts.row_nnz.end(),
            static_cast<std::int32_t*>(row_nnz.mutable_data_ptr()));
  std::copy(counts.neuron_nnz.begin(), counts.neuron_nnz.end(),
            static_cast<std::int64_t*>(neuron_nnz.mutable_data_ptr()));
  *static_cast<std::int64_t*>(candidates.mutable_data_ptr()) = counts.candidates;
  return {y, row_nnz, neuron_nnz, candidates};
}

}  // namespace twell::torch_ops
