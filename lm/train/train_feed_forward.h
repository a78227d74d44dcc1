// The feed-forward layer as training sees it. Forward counts what fires and adds up the L1 term;
// backward adds the term's gradient λ·sign(h) where dh is made anyway.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "decoder/feed_forward.h"
#include "train/activity.h"
#include "train/neuron_places.h"

namespace twell::lm {

// What the trainer tells the layers before a pass. Shared by all layers of a model; not for passes
// on several threads at once.
struct FfnTraining {
  // d loss / d |h| of one hidden value of this micro-batch: coefficient / (layers * tokens of the
  // step). Forward does not need it.
  double l1_grad = 0.0;
  std::int64_t step = 0;  // for the recorder
  ActivityRecorder* recorder =
      nullptr;           // null: nothing is recorded (forward half of recomputation)
  bool decides = false;  // whether layers look if a screen pays, or the order is made, after it
  // Which layers' gates go through a screen; the state of train/training_gate.h.
  std::map<std::int64_t, bool> forms;
  bool& screened(std::int64_t layer) { return forms[layer]; }
  bool sparse = true;  // see Recipe
  // If set: f32 sums, one for each of the layer's parameters, `down` laid out neuron-major as
  // below. Backward of the sparse path adds the parameters' gradients to them, and autograd sees
  // none.
  std::function<FfnParameters(std::int64_t layer)> sums;
  // On a GPU: which layers take the sparse path, and the order of their neurons. Null on a CPU,
  // where all take it.
  NeuronPlaces* places = nullptr;
  // Of layers that have a sparse path.
  bool takes_sparse(std::int64_t layer) const {
    if (!sparse) return false;
    return places == nullptr || places->choice(layer).sparse;
  }
  // What calls fired, on their device: nothing waits for it in between.
  struct Fired {
    std::int64_t layer;
    at::Tensor row_nnz, neuron_nnz, l1;
  };
  std::vector<Fired> pending;
  // Hands it to the recorder and the order, by the model's numbers of neurons.
  void record_pending();
  double* seconds = nullptr;  // wall time of the layers, both ways, is added; null: not taken
};

// relu, relu_squared and fat_relu; on a GPU of a plain layer (is_plain()).
bool has_sparse_path(const FfnParameters& parameters, const ActivationChoice& activation);

// Gives a parameter Wd [D, H] the memory of an [H, D]: the sparse path then takes it, and its
// gradient, as they lie, where it transposes both in every pass otherwise.
void lay_out_neuron_major(const at::Tensor& down);

// The layer of `parameters` (shared with the model), x [N, D], differentiable in x and parameters.
// With a sparse path: torch.ops.twell's ffn_train, which keeps where the gate fired and multiplies
// nothing else, on a GPU where FfnTraining::places says so. Others: PyTorch's dense operations.
// forward() ignores its observer except for wants_hidden(), which it refuses with an Error.
std::unique_ptr<FeedForward> make_training_feed_forward(const FfnParameters& parameters,
                                                        const ActivationChoice& activation,
                                                        std::shared_ptr<FfnTraining> training);

}  // namespace twell::lm
