#include "decoder/sparse_operators.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <optional>

#include "decoder/operators.h"
#include "decoder/weights.h"
#include "torch_ops/form_text.h"
#include "twell/coded_matrix.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using Tensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <class Result>
Result call(const c10::TypedOperatorHandle<LayerOperator<Result>>& op, const at::Tensor& x,
            const SparseOperands& w, const ActivationSpec& activation) {
  return op.call(x, operator_weights({w.gate, w.up, w.down}), if_there(w.screen),
                 torch_ops::text_of(activation), w.hot);
}

template <class T>
std::vector<T> to_vector(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(c10::CppTypeToScalarType<T>::value).contiguous().cpu();
  const T* data = host.const_data_ptr<T>();
  return {data, data + host.numel()};
}

}  // namespace

ActivationSpec sparse_activation(const ActivationChoice& choice) {
  if (const std::optional<Activation> kind = io::sparse_kind(choice.kind)) {
    return {*kind, has_threshold(*kind) ? choice.threshold : 0.0F};
  }
  throw Error(ErrorKind::unsupported, "sparse FFN",
              fmt::format("activation '{}' yields no zeros to skip; use the dense path (--path "
                          "dense), or a model trained with one of {}",
                          io::name_of(choice.kind), io::sparse_names()));
}

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    case at::kFloat:
      return DType::f32;
    default:
      throw Error(ErrorKind::unsupported, "matrix",
                  fmt::format("expected bf16, f16 or f32, got {}", c10::toString(type)));
  }
}

ConstMatrixView matrix_view(const at::Tensor& matrix) {
  return {matrix.const_data_ptr(), dtype_of(matrix.scalar_type()), matrix.size(0), matrix.size(1),
          matrix.stride(0)};
}

WeightView weight_view(const at::Tensor& weight) {
  const std::optional<WeightType> codes = code_type(weight);
  if (!codes) return matrix_view(weight);
  const auto view =
      coded_view(*codes, weight.const_data_ptr(), weight.size(0), weight.size(1), ScaledBy::row);
  if (!view || !weight.is_contiguous()) {
    throw Error(ErrorKind::invalid_argument, "weight", "expected codes and their scales");
  }
  return *view;
}

OperatorWeights operator_weights(at::TensorList tensors) {
  OperatorWeights out;
  out.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) out.push_back(if_there(tensor));
  return out;
}

at::Tensor sparse_ffn(const at::Tensor& x, const SparseOperands& weights,
                      const ActivationSpec& activation) {
  static const auto op = find_operator<LayerOperator<at::Tensor>>("twell::ffn");
  return call<at::Tensor>(op, x, weights, activation);
}

Tensors sparse_ffn_stats(const at::Tensor& x, const SparseOperands& weights,
                         const ActivationSpec& activation) {
  static const auto op = find_operator<LayerOperator<Tensors>>("twell::ffn_stats");
  return call<Tensors>(op, x, weights, activation);
}

at::Tensor screen_weight(const at::Tensor& gate, const at::Tensor& axis) {
  using Signature = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto op = find_operator<Signature>("twell::screen_weight");
  return op.call(gate, axis);
}

FfnCounts counts_of(const at::Tensor& row_nnz, const at::Tensor& neuron_nnz) {
  return {to_vector<std::int32_t>(row_nnz), to_vector<std::int64_t>(neuron_nnz)};
}

}  // namespace twell::lm
