// A feed-forward layer made ready for inference on a CPU: one value that owns every decision of how
// its calls run. ffn() (twell/ffn.h) is what it is made of.
//
// Decided once, by inputs like those to come or by what was found of them before
// (twell/findings.h): the form of the gate. Decided for every call: sparse or dense, where the
// caller has a dense form of the layer (twell/cost.h). Results are those of ffn() whatever is
// decided, up to the order of sums.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "twell/cost.h"
#include "twell/ffn.h"
#include "twell/findings.h"

namespace twell {

// A dense form of the layer, of the same weights: sets y [M, D] for x [M, D], and, where it is not
// null, the number of non-zeros of the activated gate.
using DenseFfn = std::function<void(ConstMatrixView x, MatrixView y, std::int64_t* nnz)>;

struct LayerOptions {
  // Of x and y. None: that of the weights, and bf16 where they are codes, which go with f32 too.
  std::optional<DType> dtype = {};
  // Whether down is [H, D], neuron-major, or [D, H] as checkpoints have it.
  bool neuron_major = false;
  // Makes the dense form, for calls that it is faster for; none: every call is sparse. Called for
  // the first such call, whose form is kept, and for the timing below, whose form is not.
  std::function<DenseFfn()> make_dense = {};
  // What both ways cost on this machine. None: the built-in figures of another, scaled by timing a
  // few calls of the layer by the first kFewestInputs or more inputs, once a process for layers
  // alike.
  std::optional<CostModel> cost = {};
  // Whether up and down are copied into rows an odd number of cache lines apart (spread_stride).
  // None: where the tier gathers pieces of rows (TierTuning::gather_columns).
  std::optional<bool> spread = {};
  // Whether weights_changed() will be asked: a cache line of each row is then read at once.
  bool watch_weights = true;
};

// One call at a time; two threads use two layers of the same weights.
class Layer {
 public:
  // weights: as stored, of types that go with x, without a screen. They stay the caller's, who
  // keeps them unchanged while the layer is used (but see reads_gate()), as he does the vectors of
  // `form`. Copies down where it does not lie neuron-major, and packs the gate where the tier
  // screens none. Throws Error naming the argument.
  Layer(const Context& context, const FfnWeights& weights, const FfnForm& form,
        LayerOptions options = {});

  // Runs inputs [N, D] like those to come, and says what it found. kFewestInputs or more.
  // `screen`: whether candidates are counted, which reads the gate as stored; not of codes, which
  // no screen is made of. The layer stays as it is.
  LayerFindings examine(Context& context, ConstMatrixView sample, bool screen = true) const;
  // Decides by inputs like those to come; with fewer than kFewestInputs the gate is packed. By
  // findings nothing is run; without candidates in them the gate is packed. A packed gate stays so.
  void prepare(Context& context, ConstMatrixView sample);
  void prepare(const LayerFindings& findings);

  // y = the layer of x, both [M, D]. The first call's inputs prepare the layer, if nothing did.
  void run(Context& context, ConstMatrixView x, MatrixView y);

  // run() in parts, for callers who run their dense form themselves. First, how the call with these
  // inputs had better run:
  struct Call {
    bool dense = false;
    bool counted = false;  // the non-zeros of the activated gate are wanted: saw()
  };
  Call next(Context& context, ConstMatrixView x);
  // Then one of the two: sparse is
  void run_sparse(Context& context, ConstMatrixView x, MatrixView y,
                  FfnCounts* counts = nullptr) const;
  // And of a call that is to be counted, the non-zeros:
  void saw(std::int64_t nnz, std::int64_t rows);

  // Whether the gate as stored is still read: until the layer is prepared, and for good where its
  // gate has a screen. Else the layer has a packed copy, and the caller may free his.
  bool reads_gate() const { return gate_form_ != GateForm::packed; }
  // Whether the caller's weights are other numbers than those the layer was made of: 16 bytes of
  // each row are compared. Such a layer has to be made anew. Not to be asked once the gate was
  // freed, nor without LayerOptions::watch_weights, which throws.
  bool weights_changed() const;

  const FfnShape& shape() const { return shape_; }
  // Up and down as ffn() reads them, [H, D]: the caller's, or copies, which have their own scales.
  const std::optional<WeightView>& up() const { return operands_.up; }
  const WeightView& down() const { return operands_.down; }
  // None until the layer is prepared.
  std::optional<GateForm> gate_form() const { return gate_form_; }
  // What it was prepared by; none without kFewestInputs, or where the tier asks nothing of them.
  const std::optional<LayerFindings>& findings() const { return findings_; }
  // What sparse or dense goes by; null where every call is sparse.
  const PathChooser* chooser() const { return chooser_ ? &*chooser_ : nullptr; }
  std::int64_t own_bytes() const;  // that the layer keeps beside the caller's weights
  // How a call of so many rows runs, in words.
  std::string describe(const Context& context, std::int64_t rows) const;

 private:
  bool screens() const;
  void pack();
  struct Trial {
    LayerFindings findings;
    std::optional<Screen> screen;
  };
  Trial run_sample(Context& context, ConstMatrixView sample, bool screen) const;
  // `screen`: that of the findings, if it is there already.
  void decide(LayerFindings findings, std::optional<Screen> screen);
  void scale_cost(Context& context, ConstMatrixView x);
  std::uint64_t fingerprint() const;

  FfnWeights weights_;   // the caller's
  FfnWeights operands_;  // as ffn() takes them, once the gate has a form
  FfnForm form_;
  LayerOptions options_;
  CpuTier tier_;
  FfnShape shape_;
  std::optional<std::uint64_t> made_of_;    // with watch_weights
  PreparedMemory up_memory_, down_memory_;  // where they are copies
  std::optional<GateForm> gate_form_;
  std::optional<PackedWeight> packed_;
  std::optional<Screen> screen_;
  std::optional<LayerFindings> findings_;
  std::optional<PathChooser> chooser_;  // where there is a dense form
  bool to_be_scaled_ = false;           // its cost
  DenseFfn dense_;                      // once run() needed it
};

}  // namespace twell
