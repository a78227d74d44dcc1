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

inline void require_weight_shape(const char* operation, const char* argument, PackedView weight) {
  require_dtype(operation, argument, weight.dtype);
  require(weight.rows >= 1 && weight.cols >= 1, operation, argument,
          "expected at least one row and column, got [", weight.rows, ", ", weight.cols, "]");
}

inline void require_packed(const char* operation, const char* argument, PackedView weight) {
  require_weight_shape(operation, argument, weight);
  require(weight.data != nullptr, operation, argument, "data is null");
}

inline void require_screened(const char* operation, const FfnWeights& weights) {
  const PackedView& gate = weights.gate;
  require_weight_shape(operation, "weights.gate", gate);
  require_matrix(operation, "weights.gate_rows", weights.gate_rows, gate.dtype, gate.rows,
                 gate.cols);
  require(weights.screen.rows == gate.rows && weights.screen.cols == gate.cols, operation,
          "weights.screen", "expected [", gate.rows, ", ", gate.cols, "], got [",
          weights.screen.rows, ", ", weights.screen.cols, "]");
}

inline void require_activation(const char* operation, const ActivationSpec& activation) {
  require(activation.kind != Activation::fat_relu || activation.threshold >= 0.0F, operation,
          "activation.threshold", "expected at least 0, got ", activation.threshold);
}

}  // namespace twell
