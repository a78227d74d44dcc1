// The feed-forward layer of a decoder block: y = (act(x Wg) ⊙ (x Wu)) Wd, or act(x Wu) Wd where the
// model has no gate, in any form of twell/ffn_form.h. Two implementations behind one interface:
// PyTorch's dense GEMMs and twell::ffn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "twell/cost.h"
#include "twell/ffn_form.h"
#include "twell/findings.h"

namespace twell::lm {

class DeviceRuntime;

// What is computed between the products.
struct ActivationChoice {
  io::HiddenAct kind = io::HiddenAct::silu;
  float threshold = 0.0F;                // fat_relu only: values <= threshold become zero
  Activation up = Activation::identity;  // of up in a layer with a gate: relu makes it dReLU
  std::optional<double> norm_eps = {};   // ε of an RMS norm of what down multiplies; none: no norm
};
// As `twell explain` says it: "relu, relu of up, norm".
std::string words_of(const ActivationChoice& activation);
// Differentiable; [..., H] -> [..., H] in the dtype of `x`. NaN passes through every activation.
at::Tensor activate(const at::Tensor& x, const ActivationChoice& activation);
// In place, where no gradient is wanted; the same bits.
at::Tensor& activate_(at::Tensor& x, const ActivationChoice& activation);
// The activation of up alone; differentiable.
at::Tensor activate_up(const at::Tensor& up, const ActivationChoice& activation);

enum class FfnPath : std::uint8_t { dense, sparse, automatic };
const char* name_of(FfnPath path);
// "dense", "sparse" or "auto"; anything else is a twell::Error naming the three.
FfnPath parse_ffn_path(std::string_view text);

// What one call of one layer did. N tokens, H hidden units.
struct FfnActivity {
  std::int64_t layer = 0;
  std::int64_t rows = 0;          // N
  std::int64_t neurons = 0;       // H
  FfnPath path = FfnPath::dense;  // dense or sparse: the one that ran
  at::Tensor gate;                // [N, H] activated gate; dense path with wants_hidden()
  at::Tensor hidden;              // [N, H] input of down or its norm, differentiable; as `gate`
  FfnCounts counts;               // of the activated gate; with wants_counts()
};

// Told about every FFN call with rows, in layer order. Must outlive the forward call it is given
// to.
class FfnObserver {
 public:
  virtual ~FfnObserver() = default;
  // The dense path only: the fused sparse kernel never has h in memory, and a forced sparse layer
  // answers an observer that wants it with a twell::Error.
  virtual bool wants_hidden() const { return false; }
  virtual bool wants_counts() const { return false; }
  // Before the first layer of a forward pass: the position of each of the N rows in its sequence.
  virtual void begin(std::span<const std::int64_t> /*positions*/) {}
  virtual void observe(const FfnActivity& activity) = 0;
};

// Tells an observer what it wants to know of a layer whose activations are in memory.
void show_activity(const at::Tensor& gate, const at::Tensor& hidden, std::int64_t layer,
                   FfnPath path, FfnObserver& observer);

// Weights as checkpoints have them. Handles: they share storage with the model's parameters.
// Strides are free: a `down` stored neuron-major is the transposed view of that storage.
// Vectors are undefined where the model has none; without a gate the bias of up is up_bias.
struct FfnParameters : FormVectors<at::Tensor> {
  at::Tensor gate;                           // [H, D]; undefined in a model without a gate
  at::Tensor up;                             // [H, D]
  at::Tensor down;                           // [D, H]
  std::optional<at::ScalarType> dtype = {};  // of x and y; none: that of the weights

  bool gated() const { return gate.defined(); }
  bool has_vectors() const;
  // Whether a weight is of codes (twell/coded_matrix.h): on a CPU's sparse path.
  bool has_codes() const;
  at::ScalarType dtype_of_x() const { return dtype.value_or(up.scalar_type()); }
};
// Whether a layer is its products and the activation of the gate: no vectors, no activation of up,
// no norm.
bool is_plain(const FfnParameters& parameters, const ActivationChoice& activation);
// h or the norm of it: what down multiplies. Differentiable.
at::Tensor input_of_down(const at::Tensor& hidden, const FfnParameters& parameters,
                         const ActivationChoice& activation);

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x [N, D] -> y [N, D], new and contiguous, any N >= 0. Differentiable where the implementation
  // says so.
  virtual at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) = 0;
  virtual FfnPath path() const = 0;
  // Bytes of weights this layer keeps besides what it was given (packed copies).
  virtual std::int64_t own_bytes() const { return 0; }
  // Whether it reads this parameter's memory in place for as long as it lives.
  virtual bool keeps(const at::Tensor& /*parameter*/) const { return false; }
  // What FfnPath::automatic goes by; null on a fixed path.
  virtual const CostModel* cost() const { return nullptr; }
  // The form that a sparse layer keeps its gate in; null before its first call, and of a dense one.
  virtual std::optional<GateForm> gate_form() const { return std::nullopt; }
  // What the layer was prepared by (twell/layer.h); null where it was not.
  virtual const LayerFindings* findings() const { return nullptr; }
  // One line for `twell explain`: how a call of so many tokens runs.
  virtual std::string describe(std::int64_t tokens) const = 0;
};

// PyTorch's GEMMs; differentiable. `prepack` reorders the weights for oneDNN once (inference only;
// the strongest dense baseline where oneDNN serves the dtype) and then does not keep `parameters`.
std::unique_ptr<FeedForward> make_dense_feed_forward(const FfnParameters& parameters,
                                                     const ActivationChoice& activation,
                                                     bool prepack = false);

// Sparse, for inference, exact. On a CPU: twell::Layer (twell/layer.h) on bf16 or f32 parameters,
// which reads up and a neuron-major down in place where the tier does not want their rows spread.
// On a GPU: torch.ops.twell.ffn on bf16 or f16, plain layers only. All weights are copied there,
// and the copies' rows ordered once by how many tokens fire them, so that GEMMs take the first
// ones; then a screen is made for calls of few rows (cuda/layer). Observers see the model's order.
//
// What a layer decides once, it decides by `findings`, or where that is null by its first calls: 32
// rows or more of inputs like those to come, as load_model() gives them. `path` is sparse or
// automatic; automatic changes to dense GEMMs where they are expected to be faster: on a CPU those
// of libtwell, on a GPU PyTorch's, for which it also keeps the gate as stored. Throws twell::Error
// for an activation without zeros or another dtype.
std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path = FfnPath::sparse,
                                                      const LayerFindings* findings = nullptr);
// The same on the device of `runtime`, which outlives the layer.
std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, const LayerFindings* findings,
                                                      DeviceRuntime& runtime);

}  // namespace twell::lm
