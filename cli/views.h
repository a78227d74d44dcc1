// Tensors as libtwell sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include "twell/status.h"
#include "twell/tensor_view.h"

namespace twell::cli {

inline DType dtype_of(const at::Tensor& t) {
  if (t.scalar_type() == at::kBFloat16) return DType::bf16;
  if (t.scalar_type() == at::kFloat) return DType::f32;
  throw Error(ErrorKind::unsupported, "tensor", "expected bf16 or f32");
}
// Of a matrix whose rows are contiguous.
inline ConstMatrixView view(const at::Tensor& t) {
  return {t.const_data_ptr(), dtype_of(t), t.size(0), t.size(1), t.stride(0)};
}
inline MatrixView mutable_view(at::Tensor& t) {
  return {t.mutable_data_ptr(), dtype_of(t), t.size(0), t.size(1), t.stride(0)};
}

}  // namespace twell::cli
