// Training of sparse feed-forward layers on NVIDIA GPUs: the operations of twell/train.h on device
// memory, under the terms of twell/cuda.h. They take bf16 and f16, and need cuBLASLt and at most
// kMostColdNeurons neurons that are not hot.
//
// The forward pass keeps a bit for each neuron, which says whether it fired. It keeps g and u of
// those that did, up to a limit (`kept_density`); the others are computed again, so nothing is lost
// at any density and no size depends on data. Hot neurons are kept as dense matrices, and their
// products are GEMMs, before which dh, du, dv and h are rounded to the dtype.
//
// act'(v) is computed from the rounded g: 2 √g for relu_squared. If g overflowed to infinity, dv
// does too.
#pragma once

#include "twell/cuda.h"

namespace twell::cuda {

inline constexpr std::int64_t kMostColdNeurons = kWidestTile;  // a row's list is one tile

struct TrainOptions {
  // The share of the places [M, H] that are not hot whose g and u are kept, with 4 bytes each.
  double kept_density = 1.0 / 32;
  // The number of places whose gradients, 20 bytes each, wait in the workspace of the backward
  // pass; 0: a 64th of the GPU's memory. If not all places have room, rows take turns; a turn costs
  // about 15 µs even if it finds none.
  std::int64_t turn_places = 0;
  std::size_t workspace_limit = kWorkspaceLimit;  // of the forward pass: plan_ffn()
};

struct TrainPlan {
  FfnPlan forward;
  GatherPlan rows;               // of the backward pass
  int neuron_blocks = 0;         // that take neurons off a queue, for each group of columns
  std::int64_t kept_places = 0;  // whose g and u are kept
  std::int64_t turn_places = 0;  // whose gradients the workspace holds
  int turns = 1;
  std::size_t kept_bytes = 0;       // between the passes
  std::size_t workspace_bytes = 0;  // of either pass
  std::string to_string() const;
};

// problem.hot: the number of first neurons, which many tokens fire. In rows where x or dy is not
// finite their gradients become NaN, as in a dense layer; others do only if they fired.
TrainPlan plan_train(const Device& device, const Problem& problem,
                     const TrainOptions& options = {});

// At least plan.kept_bytes of a plan with default options, whatever it makes of `hot`. It is for
// callers that reserve memory before they plan.
constexpr std::int64_t most_kept_bytes(std::int64_t rows, std::int64_t hidden, std::int64_t hot) {
  // g and u of hot neurons, bits in vectors of 16 bytes, an offset, g and u of every 32nd place.
  const std::int64_t of_row =
      4 * ((hot + 7) / 8 * 8) + 16 * ((hidden + 127) / 128) + 8 + 4 * ((hidden + 31) / 32);
  constexpr std::int64_t kPadding = 2048;  // of five parts to whole 256 bytes, and the last offset
  return rows * of_row + kPadding;
}

// How many neurons to make hot in training: as choose_hot() for inference.
std::int64_t choose_hot_in_training(const Device& device, const Problem& problem,
                                    const std::vector<double>& rates);

// Seconds that forward and backward are expected to take, as FfnCost: `dense` is PyTorch's eager
// layer with its element-wise operations. Pure; docs/gpu-model.md has the formula.
struct TrainCost {
  double dense = 0;
  double forward = 0;
  double transpose = 0;
  double hot = 0;      // backward
  double rows = 0;     // backward_rows
  double neurons = 0;  // backward_neurons
  double sparse() const { return forward + transpose + hot + rows + neurons; }
};
TrainCost estimate_train(const Device& device, const Problem& problem, double density,
                         double cold_density);

// How many neurons to make hot, if training is expected to be at least a tenth faster than
// PyTorch's eager layer, including `besides` seconds of the caller's; none if it is not, or is not
// possible.
std::optional<std::int64_t> choose_training(const Device& device, const Problem& problem,
                                            const std::vector<double>& rates, double besides = 0);

// Like ffn(), but also fills `kept`, of plan.kept_bytes, for one ffn_backward(). `l1`: [M], set to
// Σ |h| of each row; may be null.
void ffn_forward(const TrainPlan& plan, ConstMatrixView x, const FfnWeights& weights,
                 const ActivationSpec& activation, MatrixView y, const Workspace& kept,
                 const Workspace& workspace, Stream stream, const DeviceStats& stats = {},
                 float* l1 = nullptr);

// What the backward pass reads besides `kept`: x and the weights that forward had.
struct DeviceFfnBackward {
  ConstMatrixView dy, x;
  FfnWeights weights;
  ActivationSpec activation;
  const float* l1 = nullptr;  // λ, the gradient of |h| at a place, in device memory; null for 0
};

// Where it writes. Weight gradients are all of the layer's dtype or all f32. Those of the dtype are
// rounded once in each turn.
struct DeviceFfnGradients {
  MatrixView dx;            // [M, D] of the layer's dtype
  MatrixView gate;          // [H, D]; of Wu in a layer without a gate
  MatrixView up;            // [H, D]; data null in a layer without a gate
  MatrixView down;          // [H, D]
  bool accumulate = false;  // adds to weight gradients, which are f32 then
};
void ffn_backward(const TrainPlan& plan, const DeviceFfnBackward& in, const DeviceFfnGradients& out,
                  const Workspace& kept, const Workspace& workspace, Stream stream);

}  // namespace twell::cuda
