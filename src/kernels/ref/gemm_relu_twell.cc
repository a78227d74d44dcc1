#include <cmath>

#include "core/check.h"
#include "kernels/ref/ref.h"

namespace twell::ref {

Matrix widen(ConstMatrixView view) {
  TWELL_INVARIANT(view.dtype != DType::f16);
  Matrix out(view.rows, view.cols);
  for (std::int64_t r = 0; r < view.rows; ++r) {
    for (std::int64_t c = 0; c < view.cols; ++c) {
      out.at(r, c) = view.dtype == DType::bf16 ? static_cast<float>(view.row<bf16>(r)[c])
                                               : view.row<float>(r)[c];
    }
  }
  return out;
}

double activate(double v, const ActivationSpec& activation) {
  const bool kept = !(v <= static_cast<double>(activation.kept_above()));  // NaN is
  return kept ? activated(activation.kind, v) : 0.0;
}

Result gemm_relu_twell(const Matrix& x, const Matrix& weight, const ActivationSpec& activation) {
  Result out{Matrix(x.rows, weight.rows), Matrix(x.rows, weight.rows)};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t n = 0; n < weight.rows; ++n) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (std::int64_t k = 0; k < x.cols; ++k) {
        const double term = x.at(r, k) * weight.at(n, k);
        sum += term;
        magnitude += std::abs(term);
      }
      out.value.at(r, n) = activate(sum, activation);
      out.magnitude.at(r, n) = magnitude;
    }
  }
  return out;
}

}  // namespace twell::ref
