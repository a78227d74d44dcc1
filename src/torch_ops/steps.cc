#include "torch_ops/steps.h"

#include "torch_ops/cpu_context.h"
#include "torch_ops/twell_tensors.h"
#include "twell/steps.h"

namespace twell::torch_ops {
namespace {

std::int32_t narrow(const char* operation, const char* argument, std::int64_t value) {
  // TwellLayout::validate has the exact range; this keeps the conversion defined.
  if (value < 1 || value > 65536) {
    fail(operation, argument, "expected 1 to 65536, got " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

TwellLayout layout_of(const char* operation, std::int64_t rows, std::int64_t cols,
                      std::int64_t tile, std::int64_t capacity, DType dtype) {
  TwellLayout layout;
  layout.rows = rows;
  layout.cols = cols;
  layout.tile = narrow(operation, "tile", tile);
  layout.capacity = narrow(operation, "capacity", capacity);
  layout.dtype = dtype;
  layout.validate();
  return layout;
}

TwellTuple tuple_of(const char* operation, const TwellMatrix& matrix, const Tensor& like) {
  TwellTensors tensors = to_tensors(operation, matrix, like);
  return {tensors.counts, tensors.slots, tensors.overflow};
}

}  // namespace

TwellTuple dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity) {
  constexpr const char* kOperation = "dense_to_twell";
  const ConstMatrixView view = matrix_of({kOperation, "dense", dense});
  const TwellLayout layout =
      layout_of(kOperation, view.rows, view.cols, tile, capacity, view.dtype);
  return tuple_of(kOperation, pack(view, layout), dense);
}

Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype) {
  constexpr const char* kOperation = "twell_to_dense";
  const DType value = dtype_of(kOperation, "dtype", dtype);
  const TwellMatrix matrix = from_tensors(kOperation, {counts, slots, overflow}, cols, value);
  const std::int64_t rows = matrix.layout().rows;
  Tensor dense = new_empty({kOperation, "dense", counts}, {rows, cols}, dtype);
  unpack(matrix, mutable_matrix(dense, value, rows, cols));
  return dense;
}

TwellTuple gemm_relu_twell(const Tensor& x, const Tensor& weight_packed, std::int64_t rows,
                           const std::string& activation, double threshold, std::int64_t tile,
                           std::int64_t capacity) {
  constexpr const char* kOperation = "gemm_relu_twell";
  if (rows < 1) fail(kOperation, "rows", "expected 1 or more, got " + std::to_string(rows));
  const ConstMatrixView view = matrix_of({kOperation, "x", x});
  const PackedWeight weight =
      packed_of({kOperation, "weight_packed", weight_packed}, view.dtype, rows, view.cols);
  const ActivationSpec spec = activation_of(kOperation, activation, threshold);
  TwellMatrix out(layout_of(kOperation, view.rows, rows, tile, capacity, view.dtype));
  twell::gemm_relu_twell(cpu_context(), view, weight, spec, out);
  return tuple_of(kOperation, out, x);
}

Tensor twell_gated_ffn(const Tensor& x, const Tensor& counts, const Tensor& slots,
                       const Tensor& overflow, const Tensor& up, const Tensor& down) {
  constexpr const char* kOperation = "twell_gated_ffn";
  const ConstMatrixView view = matrix_of({kOperation, "x", x});
  const ConstMatrixView up_view = matrix_of({kOperation, "up", up});
  const ConstMatrixView down_view = matrix_of({kOperation, "down", down});
  const TwellMatrix gate =
      from_tensors(kOperation, {counts, slots, overflow}, up_view.rows, view.dtype);
  Tensor y = new_empty({kOperation, "y", x}, {view.rows, view.cols}, scalar_type_of(view.dtype));
  twell::twell_gated_ffn(cpu_context(), view, gate, up_view, down_view,
                         mutable_matrix(y, view.dtype, view.rows, view.cols));
  return y;
}

Tensor twell_spmm(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                  const Tensor& down) {
  constexpr const char* kOperation = "twell_spmm";
  const ConstMatrixView view = matrix_of({kOperation, "down", down});
  const TwellMatrix hidden =
      from_tensors(kOperation, {counts, slots, overflow}, view.rows, view.dtype);
  const std::int64_t rows = hidden.layout().rows;
  Tensor y = new_empty({kOperation, "y", down}, {rows, view.cols}, scalar_type_of(view.dtype));
  twell::twell_spmm(cpu_context(), hidden, view, mutable_matrix(y, view.dtype, rows, view.cols));
  return y;
}

}  // namespace twell::torch_ops
