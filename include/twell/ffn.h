// Sparse feed-forward layers (paper section 3): the operation that libtwell is for.
//
//   gated       g = act(x Wgᵀ), u = x Wuᵀ, h = g ⊙ u, y = h Wd
//   non-gated   h = act(x Wuᵀ), y = h Wd
//
// An FfnForm (twell/ffn_form.h) adds biases, an activation of u, and a norm of h.
//
// x and y are [M, D], both in bf16 or both in f32. Wg and Wu are [H, D] as in checkpoints. Wd is
// neuron-major, [H, D]: the transpose of a checkpoint's down projection. A weight is of the type of
// x, or codes of int8 or int4 (twell/weight.h). int8 has a scale for each row of Wg and Wu and for
// each column of Wd; int4 is for Wg and Wu. A Wg of codes is packed.
//
// Accumulation is f32. The activation is rounded once to the dtype as it is packed, y once, and u
// never. h is rounded for neurons that many rows of a block fire (FfnPlan::hot_share).
//
// A neuron that does not fire is not computed. So rows of Wu and Wd that are not finite reach only
// the rows of x that fire them, while a dense layer makes NaN of 0 · ∞. Check weights before, or
// run such a layer densely. A row of x that is not finite gives the same result as in a dense
// layer. Training checks the weights in each call (twell/train.h).
//
// Any M ≥ 0, D ≥ 1 and H ≥ 1 will do. Errors are twell::Error, naming operation and argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "twell/context.h"
#include "twell/ffn_form.h"
#include "twell/packed.h"
#include "twell/screen.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// What plans and estimates know about a layer.
struct FfnShape {
  std::int64_t width = 0;    // D
  std::int64_t neurons = 0;  // H
  bool gated = true;
  DType dtype = DType::bf16;  // of x and y
  bool operator==(const FfnShape&) const = default;
};

// How the gate is multiplied: by the GEMM on its packed weight, or with its screen, which is faster
// if the screen leaves few neurons (TierTuning::screen_limit).
enum class GateForm : std::uint8_t { packed, screened };
const char* name_of(GateForm form);

// The weights of a layer, in memory that the caller owns: on a CPU, or on a GPU (twell/cuda.h).
// ffn() takes the gate as panels (PackedWeight), or as rows with their screen (Screen).
struct FfnWeights {
  WeightView gate;               // Wg [H, D]; Wu of a layer without a gate
  std::optional<WeightView> up;  // Wu [H, D]; none in a layer without a gate
  WeightView down;               // Wd [H, D], neuron-major
  ScreenView screen = {};        // of the gate; without data: none

  GateForm form() const {
    return gate.layout == WeightLayout::panels ? GateForm::packed : GateForm::screened;
  }
  // The shape by the gate, for x and y of this dtype.
  FfnShape shape(DType x) const { return {gate.cols, gate.rows, up.has_value(), x}; }
};

// Counts of one call. A neuron fires if its gate is not zero, whatever up makes of it (dReLU).
struct FfnCounts {
  std::vector<std::int32_t> row_nnz;     // [M] neurons that each token fired
  std::vector<std::int64_t> neuron_nnz;  // [H] tokens that fired each neuron
  // Pre-activations that a screen did not rule out, of M · H; 0 without one.
  std::int64_t candidates = 0;
  double l1 = 0.0;  // Σ |h|; only training fills it

  std::int64_t rows() const { return static_cast<std::int64_t>(row_nnz.size()); }
  std::int64_t nnz() const;
  std::int64_t max_row_nnz() const;     // 0 if there are no rows
  std::int64_t active_neurons() const;  // neurons that fired at all
};

// How one call of ffn() is carried out: everything that is decided, as a value to print and
// compare.
struct FfnPlan {
  CpuTier tier = CpuTier::portable;
  int threads = 1;
  GateForm gate = GateForm::packed;
  // Rows that go through the layer together.
  std::int64_t row_block = 0;
  // Columns of a tile of the packed gate (twell/format.h), which one thread computes at a time.
  std::int32_t tile = 0;
  // Groups of rows into which a tile's work is divided: if there are fewer tiles than threads, or
  // if x of a whole block would not stay in L2.
  int row_groups = 1;
  // Parts into which a row's active neurons are divided among threads, if rows are few; else 1.
  int row_parts = 1;
  // Columns of up and down that many rows gather at a time; 0: all of them, row by row.
  std::int64_t gather_columns = 0;
  // Neurons that at least this share of a block's rows, plus hot_rows, fire are multiplied
  // densely; above 1: none.
  double hot_share = 2.0;
  int hot_rows = 0;

  bool operator==(const FfnPlan&) const = default;
  std::string to_string() const;
};
FfnPlan plan_ffn(const Context& context, std::int64_t tokens, const FfnShape& shape, GateForm gate);

// The whole layer, gated or not. The packed gate is in the context's scratch, block by block.
// `counts`, if not null, is set.
void ffn(Context& context, ConstMatrixView x, const FfnWeights& weights, const FfnForm& form,
         MatrixView y, FfnCounts* counts = nullptr);

}  // namespace twell
#pragma GCC visibility pop
