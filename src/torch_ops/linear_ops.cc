#include "torch_ops/linear_ops.h"

#include <string>

#include "torch_ops/cpu_context.h"
#include "twell/linear.h"

namespace twell::torch_ops {
namespace {

// y [..., rows] for x [..., D].
Tensor new_rows(const char* operation, const Tensor& x, std::int64_t rows, DType dtype) {
  const auto sizes = x.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = rows;
  return new_empty({operation, "y", x}, shape, scalar_type_of(dtype));
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight_packed, std::int64_t rows,
              const std::optional<Tensor>& bias) {
  constexpr const char* kOperation = "linear";
  if (rows < 1) fail(kOperation, "rows", "expected 1 or more, got " + std::to_string(rows));
  const Rows in = rows_of({kOperation, "x", x});
  const DType dtype = in.view.dtype;
  const PackedView weight =
      packed_of({kOperation, "weight_packed", weight_packed}, dtype, rows, in.view.cols);
  std::optional<Rows> offset;
  if (bias.has_value()) {
    offset = rows_of({kOperation, "bias", *bias});
    if (bias->dim() != 1 || offset->view.cols != rows || offset->view.dtype != dtype) {
      fail(kOperation, "bias",
           std::string("expected ") + name_of(dtype) + " [" + std::to_string(rows) + "], got " +
               name_of(offset->view.dtype) + " " + shape_of(*bias));
    }
  }
  Tensor y = new_rows(kOperation, x, rows, dtype);
  twell::linear(cpu_context(), in.view, weight, offset ? offset->view.data : nullptr,
                mutable_matrix(y, dtype, in.view.rows, rows));
  return y;
}

Tensor linear_as_stored(const Tensor& x, const Tensor& weight) {
  constexpr const char* kOperation = "linear_as_stored";
  const Rows in = rows_of({kOperation, "x", x});
  const DType dtype = in.view.dtype;
  const ConstMatrixView w = matrix_of({kOperation, "weight", weight}, dtype, -1, in.view.cols);
  Tensor y = new_rows(kOperation, x, w.rows, dtype);
  twell::linear_as_stored(cpu_context(), in.view, w,
                          mutable_matrix(y, dtype, in.view.rows, w.rows));
  return y;
}

}  // namespace twell::torch_ops
