#include "torch_ops/linear_ops.h"

#include <string>

#include "torch_ops/cpu_context.h"
#include "twell/linear.h"

namespace twell::torch_ops {

Tensor linear(const Tensor& x, const Tensor& weight_packed, const std::optional<Tensor>& bias) {
  constexpr const char* kOperation = "linear";
  const Rows in = rows_of({kOperation, "x", x});
  const DType dtype = in.view.dtype;
  const WeightView weight = packed_of({kOperation, "weight_packed", weight_packed});
  const std::int64_t rows = weight.rows;
  std::optional<Rows> offset;
  if (bias.has_value()) {
    offset = rows_of({kOperation, "bias", *bias});
    if (bias->dim() != 1 || offset->view.cols != rows || offset->view.dtype != dtype) {
      fail(kOperation, "bias",
           std::string("expected ") + name_of(dtype) + " [" + std::to_string(rows) + "], got " +
               name_of(offset->view.dtype) + " " + shape_of(*bias));
    }
  }
  Tensor y = new_rows({kOperation, "x", x}, rows, dtype);
  twell::linear(cpu_context(), in.view, weight, offset ? offset->view.data : nullptr,
                mutable_matrix(y, dtype, in.view.rows, rows));
  return y;
}

Tensor linear_as_stored(const Tensor& x, const Tensor& weight, bool float_sums) {
  constexpr const char* kOperation = "linear_as_stored";
  const Rows in = rows_of({kOperation, "x", x});
  const DType dtype = float_sums ? DType::f32 : in.view.dtype;
  const WeightView w = weight_of({kOperation, "weight", weight});
  Tensor y = new_rows({kOperation, "x", x}, w.rows, dtype);
  twell::linear_as_stored(cpu_context(), in.view, w,
                          mutable_matrix(y, dtype, in.view.rows, w.rows));
  return y;
}

Tensor round_inputs(const Tensor& x) {
  constexpr const char* kOperation = "round_inputs";
  const Rows in = rows_of({kOperation, "x", x});
  const DType dtype = in.view.dtype;
  Tensor y = new_rows({kOperation, "x", x}, in.view.cols, dtype);
  twell::round_inputs(cpu_context(), in.view, mutable_matrix(y, dtype, in.view.rows, in.view.cols));
  return y;
}

}  // namespace twell::torch_ops
