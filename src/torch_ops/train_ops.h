// Forward and backward passes of training (twell/train.h).
//
// x is [..., D], M rows; gate, up and down are [H, D] as stored, down neuron-major. A layer without
// a gate has Wu in its place and no up. The gate goes through `screen`, what screen_weight makes of
// it, or is packed in the call: weights are new in every step. `hot`: of the first neurons, on a
// GPU, where GEMMs multiply them (twell/cuda_train.h); both passes take the same. A CPU counts.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_ops/form_arguments.h"

namespace twell::torch_ops {

// y, l1 (f32 []: sum of |h|), row_nnz (int32, x's shape without its last dimension), neuron_nnz
// (int64 [H]), and the pattern: offsets int64 [M + 1], neurons int32 [M · H], values [2, M · H] of
// the dtype, v and u ([1, M · H] without a gate). The pattern's sizes are those of a layer where
// all neurons fire, so that they depend on no value; memory beyond what fires is reserved and never
// touched. On a GPU `values` has all in a form of its own, and offsets and neurons are empty.
using TrainedFfn = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
TrainedFfn ffn_train(const FormArguments& form, const Tensor& x, const Tensor& gate,
                     const std::optional<Tensor>& up, const Tensor& down,
                     const std::optional<Tensor>& screen);

// dx, dgate, dup and ddown, of the layer's dtype, and the gradients of the form's vectors, each of
// its vector's dtype; empty where there is no such weight or vector. l1_grad: f32 [], the gradient
// of l1; none is 0.
using FfnGradientTensors =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
FfnGradientTensors ffn_train_backward(const FormArguments& form, const Tensor& dy, const Tensor& x,
                                      const Tensor& gate, const std::optional<Tensor>& up,
                                      const Tensor& down, const Tensor& offsets,
                                      const Tensor& neurons, const Tensor& values,
                                      const std::optional<Tensor>& l1_grad);

// The same, with the gradients added to f32 tensors of the weights' and vectors' shapes; those of
// vectors may be left out. Returns dx.
Tensor ffn_train_backward_add(const FormArguments& form, const Tensor& dy, const Tensor& x,
                              const Tensor& gate, const std::optional<Tensor>& up,
                              const Tensor& down, const Tensor& offsets, const Tensor& neurons,
                              const Tensor& values, const std::optional<Tensor>& l1_grad,
                              const Tensor& dgate, const std::optional<Tensor>& dup,
                              const Tensor& ddown, const std::optional<Tensor>& dgate_bias,
                              const std::optional<Tensor>& dup_bias,
                              const std::optional<Tensor>& ddown_bias,
                              const std::optional<Tensor>& dnorm_weight);

}  // namespace twell::torch_ops
