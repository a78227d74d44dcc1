// torch.ops.twell.ffn and ffn_stats, called through the dispatcher, and how operators of layers
// are.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "decoder/feed_forward.h"
#include "twell/ffn.h"

namespace twell::lm {

// Throws twell::Error for an activation without zeros to skip.
ActivationSpec sparse_activation(const ActivationChoice& choice);

// Throws twell::Error for what is neither bf16, f16 nor f32.
DType dtype_of(at::ScalarType type);

// A matrix of one of these types with contiguous rows, as libtwell sees it.
ConstMatrixView matrix_view(const at::Tensor& matrix);
// The same, or codes with scales (int8 and int4, twell/coded_matrix.h), not of columns.
WeightView weight_view(const at::Tensor& weight);

// What operators call `weights`: gate, up, down and the vectors of a form.
using OperatorWeights = c10::List<std::optional<at::Tensor>>;
// Of one call: PyTorch 2.11 moves the tensors out of a list. Undefined ones are not there.
OperatorWeights operator_weights(at::TensorList tensors);

// The signature of ffn, ffn_stats and ffn_train. The form is torch_ops::text_of() one.
template <class Result>
using LayerOperator = Result(const at::Tensor& x, const OperatorWeights& weights,
                             const std::optional<at::Tensor>& screen, c10::string_view form,
                             std::int64_t hot);

// A layer without biases as the operators take it. up and screen may be undefined.
struct SparseOperands {
  at::Tensor gate, up, down, screen;
  std::int64_t hot = 0;  // of the first neurons, on a GPU
};
at::Tensor sparse_ffn(const at::Tensor& x, const SparseOperands& weights,
                      const ActivationSpec& activation);
// y, row_nnz, neuron_nnz, candidates.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sparse_ffn_stats(
    const at::Tensor& x, const SparseOperands& weights, const ActivationSpec& activation);
// The screen of a gate [H, D], on its device; axis: f32 [D].
at::Tensor screen_weight(const at::Tensor& gate, const at::Tensor& axis);

// Integer tensors [M] and [H] on any device, whose work it waits for.
FfnCounts counts_of(const at::Tensor& row_nnz, const at::Tensor& neuron_nnz);

}  // namespace twell::lm
