// A feed-forward layer for inference on a CPU that decides by itself how each call runs. ffn()
// (twell/ffn.h) is what it is made of, and a LayerBlock (twell/layer_block.h) what it runs.
//
// Decided once, by representative inputs or by what was found of them before (twell/findings.h):
// the form of the gate. Decided for every call: sparse, or dense by packed weights
// (twell/cost.h). Results are those of ffn() whatever is decided, up to the order of sums and, in a
// dense bf16 call, the rounding of h.
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

// A dense form of the layer, of the same weights: sets y [M, columns] for x [M, D], and, where it
// is not null, row_nnz and neuron_nnz of `counts`. Called from any thread that runs the layer, with
// that thread's context.
using DenseFfn =
    std::function<void(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts)>;

struct LayerOptions {
  BlockOptions block = {};
  // How calls run. None: each as is expected to be faster. Sparse: all, and no dense form is ever
  // made. Dense: all, if the layer has a dense form. That is packed copies of up and down, and of a
  // gate that has a screen; it is made for the first call that needs it, and kept. Layers where a
  // row of up or down is not finite have none of their own.
  std::optional<LayerPath> path = {};
  // Makes another dense form, the caller's, instead. Neither this nor what it makes may call a
  // layer.
  std::function<DenseFfn()> make_dense = {};
  // What both ways cost. None: the built-in figures of another machine, scaled by timing calls of
  // this layer, once a process for layers of its kind: by the first kFewestInputs or more inputs,
  // and again by the first that come in a larger order of rows. Such a call takes a few times as
  // long. All figures are those of numbers. A layer of codes takes no measured ones (`measured_on`)
  // and is timed; it is sparse until then, and always where built-in figures are given.
  std::optional<CostModel> cost = {};
};

// Any number of threads may run one layer at the same time, each with a Context of its own. The
// first call prepares it, and others wait for that.
class Layer {
 public:
  // Of weights as stored. The caller keeps them alive and unchanged: until the layer is prepared
  // all of them, from then on those that it reads in place (LayerBlock::external_bytes()). Vectors
  // of `form` are copied. Throws Error naming the argument.
  Layer(const Context& context, const StoredWeights& weights, const FfnForm& form,
        LayerOptions options = {});
  // Of a block, which may be shared with other layers. `options.block` is not looked at.
  Layer(const Context& context, const LayerBlock& block, LayerOptions options = {});
  ~Layer();
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;

  // Runs representative inputs [N, D] and says what it found; kFewestInputs or more. `screen`:
  // whether candidates are counted, while the gate as stored is read (reads_gate()); not of codes,
  // which have no screen. The layer stays as it is.
  LayerFindings examine(Context& context, ConstMatrixView sample, bool screen = true) const;
  // Decides by representative inputs; with fewer than kFewestInputs the gate is packed. By findings
  // nothing is run; without candidates in them the gate is packed. Once it has a form, a gate keeps
  // it, and only the density that calls are expected to have changes.
  void prepare(Context& context, ConstMatrixView sample);
  void prepare(const LayerFindings& findings);

  // y = the layer of x, [M, columns] of [M, D]. The first call's inputs prepare the layer, if
  // nothing did. `counts`, if not null, is set.
  LayerPath run(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts = nullptr);

  const FfnShape& shape() const;
  // None until the layer is prepared.
  std::optional<LayerBlock> block() const;
  // Whether the gate as stored is still read: until the layer is prepared, and for good where its
  // gate has a screen. Else the layer has a packed copy, and the caller may free his.
  bool reads_gate() const;
  // Up and down as ffn() reads them, [H, D]: the caller's, or copies, which have their own scales.
  const std::optional<WeightView>& up() const;
  const WeightView& down() const;
  // What sparse or dense goes by; null where every call is sparse. Not while another thread runs
  // the layer.
  const PathChooser* chooser() const;
  std::int64_t own_bytes() const;  // that the layer keeps beside the caller's weights
  // How a call of so many rows runs, in words.
  std::string describe(const Context& context, std::int64_t rows) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace twell
#pragma GCC visibility pop
