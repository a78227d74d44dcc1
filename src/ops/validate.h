// Argument checks that the operations share. Each throws Error{invalid_argument} naming operation
// and argument, what was expected and what came.
#pragma once

#include <string>

#include "core/check.h"
#include "format/prepared.h"
#include "twell/ffn.h"

namespace twell {

inline void require_matrix(const char* operation, const char* argument, ConstMatrixView view,
                           DType dtype, std::int64_t rows, std::int64_t cols) {
  require(view.dtype == dtype && view.rows == rows && view.cols == cols, operation, argument,
          "expected ", name_of(dtype), " [", rows, ", ", cols, "], got ", name_of(view.dtype), " [",
          view.rows, ", ", view.cols, "]");
  require_view(operation, argument, view);
}

inline void require_weight_shape(const char* operation, const char* argument, WeightType type,
                                 std::int64_t rows, std::int64_t cols) {
  require_weight_type(operation, argument, type);
  require(rows >= 1 && cols >= 1, operation, argument,
          "expected at least one row and column, got [", rows, ", ", cols, "]");
}

// A weight as stored, [rows, cols], that x of a dtype is multiplied with.
inline void require_weight(const char* operation, const char* argument, const WeightView& weight,
                           DType x, std::int64_t rows, std::int64_t cols) {
  require(goes_with(x, weight.type) && weight.rows == rows && weight.cols == cols, operation,
          argument, "expected ", goes_with(x, weight.type) ? name_of(weight.type) : name_of(x),
          " [", rows, ", ", cols, "], got ", name_of(weight.type), " [", weight.rows, ", ",
          weight.cols, "]");
  require_weight_rows(operation, argument, weight);
}
// x [M, D] for a weight that is checked by itself.
inline void require_x(const char* operation, ConstMatrixView x, const WeightView& weight) {
  require(goes_with(x.dtype, weight.type) && x.cols == weight.cols, operation, "x", "expected ",
          has_scales(weight.type) ? "bf16 or f32" : name_of(weight.type), " [", x.rows, ", ",
          weight.cols, "], got ", name_of(x.dtype), " [", x.rows, ", ", x.cols, "]");
  require_view(operation, "x", x);
}
// The weights of a call that trains them.
inline void require_trained(const char* operation, const WeightView& gate,
                            const std::optional<WeightView>& up, const WeightView& down) {
  require_float_weight(operation, "gate", gate.type);
  if (up) require_float_weight(operation, "up", up->type);
  require_float_weight(operation, "down", down.type);
}
// Everything of a call of ffn(); in ffn.cc.
void require_ffn(const char* operation, ConstMatrixView x, const FfnWeights& weights,
                 const FfnForm& form, MatrixView y);

inline void require_activation(const char* operation, const ActivationSpec& activation) {
  require(activation.kind != Activation::identity, operation, "activation",
          "expected one that yields zeros, got identity");
  require(activation.kept_above() >= 0.0F, operation, "activation.threshold",
          "expected at least 0, got ", activation.threshold);
}

// A vector of a form, of one entry for each of `size`, or empty.
inline void require_entries(const char* operation, const char* argument,
                            std::span<const float> vector, std::int64_t size) {
  require(vector.empty() || std::ssize(vector) == size, operation, argument, "expected ", size,
          " entries, got ", vector.size());
}

// The vectors of a form or their gradients; `of` stands before a name.
template <class Entries>
void require_vectors(const char* operation, const char* of, const FormVectors<Entries>& vectors,
                     const FfnShape& shape, std::int64_t columns) {
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    const FormVector& about = kFormVectors[i];
    if (vectors[i].empty()) continue;
    const std::string argument = std::string(of) + about.name;
    require(shape.gated || !about.of_up, operation, argument.c_str(),
            "expected none, in a layer without a gate");
    require_entries(operation, argument.c_str(), vectors[i], about.entries(shape.neurons, columns));
  }
}

inline void require_form(const char* operation, const FfnForm& form, const FfnShape& shape,
                         std::int64_t columns) {
  require_activation(operation, form.gate);
  require(form.up != Activation::fat_relu, operation, "form.up",
          "expected an activation without a threshold, got fat_relu");
  require(shape.gated || form.up == Activation::identity, operation, "form.up",
          "expected no activation of up, in a layer without a gate");
  require(form.norm_epsilon.value_or(1.0F) > 0.0F, operation, "form.norm_epsilon",
          "expected more than 0, got ", form.norm_epsilon.value_or(0.0F));
  require(form.norm_epsilon || form.norm_weight.empty(), operation, "form.norm_weight",
          "expected norm_epsilon with it, got none");
  require_vectors(operation, "form.", form, shape, columns);
}

}  // namespace twell
