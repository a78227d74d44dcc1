#include "torch_ops/linear_ops.h"

#include <string>

#include "torch_ops/cpu_context.h"
#include "twell/linear.h"

namespace twell::torch_ops {

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
  const auto sizes = x.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = rows;
  Tensor y = new_empty(x, shape, scalar_type_of(dtype));
  twell::linear(cpu_context(), in.view, weight, offset ? offset->view.data : nullptr,
                mutable_matrix(y, dtype, in.view.rows, rows));
  return y;
}

}  // namespace twell::torch_ops
