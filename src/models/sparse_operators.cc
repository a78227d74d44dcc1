#include "models/sparse_operators.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "models/operators.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::unsupported, "sparse FFN", message);
}

template <class Result>
Result call(const char* gated_name, const char* plain_name, const at::Tensor& x,
            const SparseOperands& w, const ActivationSpec& activation) {
  using Gated = Result(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       c10::string_view, double);
  using Plain =
      Result(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view, double);
  static const auto gated = find_operator<Gated>(gated_name);
  static const auto plain = find_operator<Plain>(plain_name);
  const auto threshold = static_cast<double>(activation.threshold);
  const char* name = name_of(activation.kind);
  return w.up.defined() ? gated.call(x, w.packed, w.up, w.down, name, threshold)
                        : plain.call(x, w.packed, w.down, name, threshold);
}

template <class Result>
Result call_screened(const char* name, const at::Tensor& x, const SparseOperands& w,
                     const ActivationSpec& activation) {
  using Signature =
      Result(const at::Tensor&, const at::Tensor&, const at::Tensor&,
             const std::optional<at::Tensor>&, const at::Tensor&, c10::string_view, double);
  static const auto screened = find_operator<Signature>(name);
  return screened.call(x, w.gate, w.screen,
                       w.up.defined() ? std::optional<at::Tensor>(w.up) : std::nullopt, w.down,
                       name_of(activation.kind), static_cast<double>(activation.threshold));
}

}  // namespace

ActivationSpec sparse_activation(const ActivationChoice& choice) {
  switch (choice.kind) {
    case io::HiddenAct::relu:
      return {Activation::relu, 0.0F};
    case io::HiddenAct::relu_squared:
      return {Activation::relu_squared, 0.0F};
    case io::HiddenAct::fat_relu:
      return {Activation::fat_relu, choice.threshold};
    default:
      fail(
          fmt::format("activation '{}' yields no zeros to skip; use the dense path (--ffn dense), "
                      "or a model trained with relu, relu2 or fat_relu",
                      io::name_of(choice.kind)));
  }
}

ConstMatrixView matrix_view(const at::Tensor& matrix) {
  return {matrix.const_data_ptr(), matrix.scalar_type() == at::kFloat ? DType::f32 : DType::bf16,
          matrix.size(0), matrix.size(1), matrix.stride(0)};
}

void check_sparse_layer(const FfnParameters& parameters) {
  if (parameters.has_bias()) {
    fail("biases in the feed-forward layer (mlp_bias) are not supported; use --ffn dense");
  }
}

bool check_sparse_call(const at::Tensor& x, FfnPath path, const FfnObserver* observer) {
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    fail("this layer is for inference; load the model with trainable = true for gradients");
  }
  const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
  if (hidden_wanted && path == FfnPath::sparse) {
    fail(
        "hidden activations are never in memory on this path; use the dense one (--ffn dense) to "
        "look at them");
  }
  return hidden_wanted;
}

at::Tensor sparse_ffn(const at::Tensor& x, const SparseOperands& weights,
                      const ActivationSpec& activation) {
  if (weights.screen.defined()) {
    return call_screened<at::Tensor>("twell::screened_ffn", x, weights, activation);
  }
  return call<at::Tensor>("twell::gated_ffn", "twell::ffn", x, weights, activation);
}

CountedOutput sparse_ffn_counted(const at::Tensor& x, const SparseOperands& weights,
                                 const ActivationSpec& activation) {
  if (weights.screen.defined()) {
    using Counted = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
    auto [y, row_nnz, neuron_nnz, candidates] =
        call_screened<Counted>("twell::screened_ffn_stats", x, weights, activation);
    return {std::move(y), std::move(row_nnz), std::move(neuron_nnz),
            candidates.item<std::int64_t>()};
  }
  using Counted = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  auto [y, row_nnz, neuron_nnz] =
      call<Counted>("twell::gated_ffn_stats", "twell::ffn_stats", x, weights, activation);
  return {std::move(y), std::move(row_nnz), std::move(neuron_nnz), 0};
}

}  // namespace twell::lm
