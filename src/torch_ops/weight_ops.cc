#include "torch_ops/weight_ops.h"

#include <algorithm>

#include "torch_ops/cpu_context.h"
#include "twell/coded_matrix.h"
#include "twell/tuning.h"

namespace twell::torch_ops {

Tensor pack_weight(const Tensor& weight) {
  constexpr const char* kOperation = "pack_weight";
  const WeightView view = weight_of({kOperation, "weight", weight});
  if (view.layout == WeightLayout::panels) {
    fail(kOperation, "weight", "expected a weight as stored, got a packed one");
  }
  const WeightType type = view.type;
  Tensor packed = new_empty({kOperation, "packed", weight},
                            packed_shape(type, view.rows, view.cols), weight.scalar_type());
  if (view.rows == 0 || view.cols == 0) return packed;
  auto* const panels = static_cast<std::byte*>(packed.mutable_data_ptr());
  twell::pack_weight(view, panels);
  // Behind the panels, so that the tensor is a function of the weight alone.
  const std::size_t used = packed_bytes(type, view.rows, view.cols);
  const auto all = static_cast<std::size_t>(element_bytes(type) * packed.numel());
  std::fill_n(panels + used, all - used, std::byte{});
  return packed;
}

namespace {

Tensor unpacked_codes(const Argument& packed, const WeightView& view) {
  const std::int64_t row = bytes_of(view.type, view.cols);
  if (view.rows == 0 || view.cols == 0) {
    fail(packed.operation, packed.name, "expected codes, got none");
  }
  Tensor weight =
      new_empty({packed.operation, "weight", packed.tensor},
                {coded_extent(view.rows, row, ScaledBy::row), row}, packed.tensor.scalar_type());
  unpack_codes(view, weight.mutable_data_ptr());
  return weight;
}

}  // namespace

Tensor unpack_weight(const Tensor& packed) {
  const Argument argument{"unpack_weight", "packed", packed};
  const WeightView view = packed_of(argument);
  if (has_scales(view.type)) return unpacked_codes(argument, view);
  Tensor weight = new_empty({argument.operation, "weight", packed}, {view.rows, view.cols},
                            packed.scalar_type());
  if (view.rows > 0 && view.cols > 0) {
    twell::unpack_weight(view, mutable_matrix(weight, dtype_of(argument), view.rows, view.cols));
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
