#include "torch_ops/weight_ops.h"

#include "torch_ops/cpu_context.h"
#include "twell/tuning.h"

namespace twell::torch_ops {

Tensor pack_weight(const Tensor& weight) {
  constexpr const char* kOperation = "pack_weight";
  const ConstMatrixView view = matrix_of({kOperation, "weight", weight});
  Tensor packed =
      new_empty({kOperation, "packed", weight}, packed_shape(view.dtype, view.rows, view.cols),
                scalar_type_of(view.dtype));
  if (view.rows > 0 && view.cols > 0) twell::pack_weight(view, packed.mutable_data_ptr());
  return packed;
}

Tensor unpack_weight(const Tensor& packed, std::int64_t rows, std::int64_t cols) {
  constexpr const char* kOperation = "unpack_weight";
  if (rows < 0) fail(kOperation, "rows", "expected 0 or more, got " + std::to_string(rows));
  if (cols < 0) fail(kOperation, "cols", "expected 0 or more, got " + std::to_string(cols));
  const DType dtype = dtype_of({kOperation, "packed", packed});
  Tensor weight = new_empty({kOperation, "weight", packed}, {rows, cols}, scalar_type_of(dtype));
  if (rows > 0 && cols > 0) {
    packed_of({kOperation, "packed", packed}, dtype, rows, cols)
        .unpack(mutable_matrix(weight, dtype, rows, cols));
  } else {
    require_packed_shape({kOperation, "packed", packed}, dtype, rows, cols);
  }
  return weight;
}

Tensor screen_weight(const Tensor& weight, const std::optional<Tensor>& axis) {
  constexpr const char* kOperation = "screen_weight";
  const ConstMatrixView view = matrix_of({kOperation, "weight", weight});
  const float* direction = nullptr;
  std::optional<Rows> rows;
  if (axis.has_value()) {
    rows = rows_of({kOperation, "axis", *axis});
    if (axis->dim() != 1 || rows->view.cols != view.cols || rows->view.dtype != DType::f32) {
      fail(kOperation, "axis",
           "expected f32 [" + std::to_string(view.cols) + "], got " + name_of(rows->view.dtype) +
               " " + shape_of(*axis));
    }
    direction = static_cast<const float*>(rows->view.data);
  }
  const auto bytes = static_cast<std::int64_t>(screen_bytes(view.rows, view.cols));
  Tensor screen = new_empty({kOperation, "screen", weight}, {bytes}, ScalarType::Byte);
  twell::make_screen(view, direction, screen.mutable_data_ptr());
  return screen;
}

double screen_limit() { return tuning_of(cpu_context().tier()).screen_limit; }

}  // namespace twell::torch_ops
