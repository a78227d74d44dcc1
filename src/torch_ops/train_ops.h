// Forward and backward passes of training (twell/train.h).
//
// x is [..., D], M rows; gate, up and down are [H, D] as stored, down neuron-major. A layer without
// a gate has Wu in its place and no up. The gate goes through `screen`, what screen_weight makes of
// it, or is packed in the call: weights are new in every step. `hot`: of the first neurons, on a
// GPU, where GEMMs multiply them (twell/cuda_train.h); both passes take the same. A CPU counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "torch_ops/form_arguments.h"

namespace twell::torch_ops {

// y, l1 (f32 []: sum of |h|), row_nnz (int32, x's shape without its last dimension), neuron_nnz
// (int64 [H]), and the pattern: offsets int64 [M + 1], neurons int32 [M · H], values [2, M · H] of
// the dtype, v and u ([1, M · H] without a gate). The pattern's sizes are those of a layer where
// all neurons fire, so that they depend on no value; memory beyond what fires is reserved and never
// touched. On a GPU `values` has all in a form of its own, and offsets and neurons are empty.
using TrainedFfn = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
TrainedFfn ffn_train(const Tensor& x, const OptionalTensors& weights,
                     const std::optional<Tensor>& screen, const std::string& form,
                     std::int64_t hot);

// dx, dgate, dup and ddown, of the layer's dtype, and the gradients of the form's vectors, each of
// its vector's dtype; empty where there is no such weight or vector. `kept` is the pattern.
// l1_grad: f32 [], the gradient of l1; none is 0.
GradientTensors ffn_train_backward(const Tensor& dy, const Tensor& x,
                                   const OptionalTensors& weights, const std::vector<Tensor>& kept,
                                   const std::optional<Tensor>& l1_grad, const std::string& form,
                                   std::int64_t hot);

// The same, with the gradients added to `gradients`, f32 tensors of the shapes of the weights;
// those of vectors may be left out. Returns dx.
Tensor ffn_train_backward_add(const Tensor& dy, const Tensor& x, const OptionalTensors& weights,
                              const std::vector<Tensor>& kept, const std::optional<Tensor>& l1_grad,
                              const OptionalTensors& gradients, const std::string& form,
                              std::int64_t hot);

}  // namespace twell::torch_ops
