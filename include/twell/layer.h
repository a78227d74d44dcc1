// A feed-forward layer for inference on a CPU that decides by itself how each call runs. ffn()
// (twell/ffn.h) is what it is made of, and a LayerBlock (twell/layer_block.h) what it runs.
//
// The gate form is decided once, by representative inputs or by earlier findings
// (twell/findings.h). The path, sparse or dense on packed weights, is decided for every call
// (twell/cost.h). Whatever is decided, results are those of ffn(), up to the order of sums and, in
// a dense bf16 call, the rounding of h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "twell/cost.h"
#include "twell/layer_block.h"

#pragma GCC visibility push(default)
namespace twell {

// How a call runs.
enum class LayerPath : std::uint8_t { sparse, dense };

// A dense variant of the layer, of the same weights: sets y [M, columns] for x [M, D], and row_nnz
// and neuron_nnz of `counts`, if that is not null. Any thread that runs the layer may call it, with
// its own context.
using DenseFfn =
    std::function<void(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts)>;

struct LayerOptions {
  BlockOptions block = {};
  // How calls run. None: each takes the path that is expected to be faster. Sparse: all do, and no
  // dense variant is ever made. Dense: all do, if the layer has a dense variant: packed copies of
  // up, down and a gate that has a screen, made for the first call that needs them, and kept. A
  // layer with a row of up or down that is not finite has none of its own.
  std::optional<LayerPath> path = {};
  // Makes the caller's dense variant in place of that one. Neither this function nor the variant
  // may call a layer.
  std::function<DenseFfn()> make_dense = {};
  // What both paths cost. None: the built-in figures of another machine, scaled by timing calls of
  // this layer, once in a process for layers of its kind: by the first kFewestInputs or more
  // inputs, again by the first call with a larger order of rows, and by later ones if the machine
  // was busy. Such a call takes a few times as long. A layer of codes takes no measured figures
  // (`measured_on`) and is timed; it is sparse until then, and always if built-in figures are
  // given.
  std::optional<CostModel> cost = {};
};

// Any number of threads may run one layer at the same time, each with a Context of its own. The
// first call prepares it, and others wait for that.
class Layer {
 public:
  // Of weights as stored. The caller owns them and must keep them alive and unchanged: all of them
  // until the layer is prepared, from then on those that it reads in place
  // (LayerBlock::external_bytes()). Vectors of `form` are copied. Throws Error naming the argument.
  Layer(const Context& context, const StoredWeights& weights, const FfnForm& form,
        LayerOptions options = {});
  // Of a block, which may be shared with other layers. `options.block` is ignored.
  Layer(const Context& context, const LayerBlock& block, LayerOptions options = {});
  ~Layer();
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;

  // Runs kFewestInputs or more representative inputs [N, D] and returns what it found. `screen`:
  // whether to count candidates, as long as the gate is read as stored (reads_gate()); codes have
  // no screen. The layer does not change.
  LayerFindings examine(Context& context, ConstMatrixView sample, bool screen = true) const;
  // Decides by representative inputs, or by findings, which runs nothing. With fewer inputs than
  // kFewestInputs, or no candidates in the findings, the gate is packed. A gate keeps its form once
  // it has one; then only the expected density changes.
  void prepare(Context& context, ConstMatrixView sample);
  void prepare(const LayerFindings& findings);

  // y = the layer of x, [M, columns] of [M, D]. The first call's inputs prepare the layer, if
  // nothing else has. `counts`, if not null, is set.
  LayerPath run(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts = nullptr);

  const FfnShape& shape() const;
  // None until the layer is prepared.
  std::optional<LayerBlock> block() const;
  // Whether the gate as stored is still read: until the layer is prepared, and always if the gate
  // has a screen. Otherwise the layer has a packed copy, and the caller may free the original.
  bool reads_gate() const;
  // Up and down as ffn() reads them, [H, D]: the caller's, or copies, which have their own scales.
  const std::optional<WeightView>& up() const;
  const WeightView& down() const;
  // Chooses between sparse and dense; null if every call is sparse. Not to be called while another
  // thread runs the layer.
  const PathChooser* chooser() const;
  std::int64_t own_bytes() const;  // that the layer keeps besides the caller's weights
  // How a call of so many rows runs, in words.
  std::string describe(const Context& context, std::int64_t rows) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace twell
#pragma GCC visibility pop
