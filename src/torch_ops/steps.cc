#include "torch_ops/steps.h"

#include "torch_ops/cpu_context.h"
#include "twell/steps.h"

namespace twell::torch_ops {

TwellTensors dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity) {
  constexpr const char* kOperation = "dense_to_twell";
  const ConstMatrixView view = matrix_of({kOperation, "dense", dense});
  return to_tensors(kOperation, pack(view, layout_of(kOperation, view, view.cols, tile, capacity)),
                    dense);
}

Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype) {
  constexpr const char* kOperation = "twell_to_dense";
  const DType value = dtype_of(kOperation, "dtype", dtype, false);
  const TwellMatrix matrix = from_tensors(kOperation, {counts, slots, overflow}, cols, value);
  const std::int64_t rows = matrix.layout().rows;
  Tensor dense = new_empty({kOperation, "dense", counts}, {rows, cols}, dtype);
  unpack(matrix, mutable_matrix(dense, value, rows, cols));
  return dense;
}

TwellTensors gemm_relu_twell(const Tensor& x, const Tensor& weight_packed,
                             const std::string& activation, double threshold, std::int64_t tile,
                             std::int64_t capacity) {
  constexpr const char* kOperation = "gemm_relu_twell";
  const ConstMatrixView view = matrix_of({kOperation, "x", x});
  const WeightView weight = packed_of({kOperation, "weight_packed", weight_packed});
  const ActivationSpec spec = activation_of(kOperation, activation, threshold);
  TwellMatrix out(layout_of(kOperation, view, weight.rows, tile, capacity));
  twell::gemm_relu_twell(cpu_context(), view, weight, spec, out);
  return to_tensors(kOperation, out, x);
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
