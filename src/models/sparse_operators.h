// What the sparse feed-forward layers of all devices (ffn_sparse.cc, ffn_device.cc) share: which
// layers and calls they take, and their operators of torch.ops.twell.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/feed_forward.h"
#include "twell/ffn.h"

namespace twell::lm {

// Throws twell::Error for an activation without zeros to skip.
ActivationSpec sparse_activation(const ActivationChoice& choice);
// Throws twell::Error where the layer has biases.
void check_sparse_layer(const FfnParameters& parameters);
// Whether the observer wants hidden activations. Throws twell::Error where gradients are wanted,
// and where `path` is sparse and hidden activations are.
bool check_sparse_call(const at::Tensor& x, FfnPath path, const FfnObserver* observer);

// A matrix of bf16 or fp32 with contiguous rows, as libtwell sees it.
ConstMatrixView matrix_view(const at::Tensor& matrix);

// Weights as the operators take them.
struct SparseOperands {
  at::Tensor packed;  // of the gate, or of up in a model without one; undefined with a screen
  at::Tensor up;      // [H, D], undefined without a gate
  at::Tensor down;    // [H, D]
  at::Tensor gate;    // [H, D] with a screen: what else would be packed
  at::Tensor screen;  // as torch.ops.twell.screen_weight makes it
};
struct CountedOutput {
  at::Tensor y, row_nnz, neuron_nnz;
  std::int64_t candidates = 0;  // with a screen: pre-activations that it did not rule out
};

at::Tensor sparse_ffn(const at::Tensor& x, const SparseOperands& weights,
                      const ActivationSpec& activation);
CountedOutput sparse_ffn_counted(const at::Tensor& x, const SparseOperands& weights,
                                 const ActivationSpec& activation);

}  // namespace twell::lm
