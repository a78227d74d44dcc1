// Argument checks that the operations share. Each throws Error{invalid_argument} naming operation
// and argument, what was expected and what came.
#pragma once

#include "core/check.h"
#include "twell/ffn.h"

namespace twell {

inline void require_matrix(const char* operation, const char* argument, ConstMatrixView view,
                           DType dtype, std::int64_t rows, std::int64_t cols) {
  require(view.dtype == dtype && view.rows == rows && view.cols == cols, operation, argument,
          "expected ", name_of(dtype), " [", rows, ", ", cols, "], got ", name_of(view.dtype), " [",
          view.rows, ", ", view.cols, "]");
  require_view(operation, argument, view);
}

inline void require_weight_shape(const char* operation, const char* argument, DType dtype,
                                 std::int64_t rows, std::int64_t cols) {
  require_dtype(operation, argument, dtype);
  require(rows >= 1 && cols >= 1, operation, argument,
          "expected at least one row and column, got [", rows, ", ", cols, "]");
}

// Everything of a call of ffn(); in ffn.cc.
void require_ffn(const char* operation, ConstMatrixView x, const FfnWeights& weights,
                 const ActivationSpec& activation, MatrixView y);

inline void require_activation(const char* operation, const ActivationSpec& activation) {
  require(activation.kept_above() >= 0.0F, operation, "activation.threshold",
          "expected at least 0, got ", activation.threshold);
}

}  // namespace twell
