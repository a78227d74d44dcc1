// Training of sparse feed-forward layers: a forward pass that keeps where the gate fired, and a
// backward pass that visits these places. It serves the purpose of the paper's hybrid ELL and dense
// format, without that format's cap: nothing is dropped at any density.
//
//   forward    v = x Wgᵀ, g = act(v), u = x Wuᵀ, h = g ⊙ u, y = h Wd
//   backward   dh = dy Wdᵀ + λ sign(h), du = dh ⊙ g, dv = dh ⊙ u ⊙ act'(v), where the gate fired,
//              dx = dv Wg + du Wu, dWg = dvᵀ x, dWu = duᵀ x, dWd = hᵀ dy
//
// With the additions of an FfnForm, a place does not count as fired if up's activation makes h 0.
// The gradients of biases are the sums of dv, du and dy over all rows. With a norm, q = dy Wdᵀ,
// c = s³ / H · Σ h w q of a row, dh = s w ⊙ q − c h + λ sign(h), dWd = (s w ⊙ h)ᵀ dy and
// dw = Σ s h ⊙ q.
//
// A layer without a gate has Wu in the gate's place and no u. Shapes and dtypes are those of
// twell/ffn.h; Wd and its gradient are neuron-major. Sums are f32. v and u are rounded to the dtype
// when they are kept, and dv, du and h of neurons multiplied densely are too (FfnPlan::hot_share).
//
// y is NaN wherever that of a dense layer is, even if a neuron that did not fire has rows of Wu or
// Wd that are not finite: forward checks for such rows. Neurons that did not fire contribute
// nothing to a gradient, while a dense layer makes NaN if dy or x is infinite there. Infinities and
// NaN at places that fired propagate.
#pragma once

#include "twell/ffn.h"

#pragma GCC visibility push(default)
namespace twell {

// Where the gate fired in M rows, as compressed sparse rows: all that backward needs besides x.
struct FfnPatternView {
  std::int64_t rows = 0;                  // M
  std::int64_t cols = 0;                  // H
  DType dtype = DType::bf16;              // of v and u
  const std::int64_t* offsets = nullptr;  // [M + 1]: row r has the places from offsets[r] on
  const std::int32_t* neurons = nullptr;  // [nnz], ascending within a row
  const void* v = nullptr;                // [nnz] pre-activations
  const void* u = nullptr;                // [nnz]; null in a layer without a gate

  std::int64_t nnz() const { return offsets == nullptr ? 0 : offsets[rows]; }
};

// A pattern that owns its lists, which grow as neurons fire, or that is in the caller's memory.
class FfnPattern {
 public:
  FfnPattern() = default;
  // In `lists`, which have room for rows + 1 offsets and rows · cols places. Unused room is never
  // touched. It writes through the pointers, which must outlive it.
  explicit FfnPattern(const FfnPatternView& lists);
  FfnPattern(FfnPattern&&) = default;
  FfnPattern& operator=(FfnPattern&&) = default;

  FfnPatternView view() const { return view_; }
  // Bytes of the lists: 4 bytes and two values for each place, and 8 bytes for each row.
  std::size_t bytes() const;

  // Empties it for `rows` rows of a layer.
  void reset(std::int64_t rows, const FfnShape& shape);
  // Makes room for the places of the next rows: counts[r] for row r.
  void append(const std::int32_t* counts, std::int64_t rows);
  // Keeps the first counts[r] places of each of those rows r, and moves them together.
  void keep(const std::int32_t* counts, std::int64_t rows);
  std::int32_t* neurons() { return const_cast<std::int32_t*>(view_.neurons); }
  void* v() { return const_cast<void*>(view_.v); }
  void* u() { return const_cast<void*>(view_.u); }

 private:
  void reserve(std::int64_t places);

  FfnPatternView view_;
  bool borrowed_ = false;
  bool gated_ = true;
  std::int64_t done_ = 0;  // rows
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> neurons_;
  std::vector<std::byte> v_, u_;
};

// Like ffn(), but also sets `pattern`, and counts.l1 = Σ |h|.
void ffn_forward(Context& context, ConstMatrixView x, const FfnWeights& weights,
                 const FfnForm& form, MatrixView y, FfnPattern& pattern,
                 FfnCounts* counts = nullptr);

// The inputs of backward: x and the weights that forward had, all as stored.
struct FfnBackward {
  ConstMatrixView dy, x;         // [M, D]
  WeightView gate;               // [H, D]; Wu in a layer without a gate
  std::optional<WeightView> up;  // [H, D]; none in a layer without a gate
  WeightView down;               // [H, D]
  FfnPatternView pattern;
  FfnForm form;     // the form that forward had; down_bias is not read
  float l1 = 0.0F;  // λ, the gradient of |h| at a place: finite
};

// The outputs of backward. Weight gradients are of the layer's dtype or f32.
struct FfnGradients {
  MatrixView dx;                 // [M, D] of the layer's dtype
  MatrixView gate;               // [H, D]; of Wu in a layer without a gate
  std::optional<MatrixView> up;  // [H, D]
  MatrixView down;               // [H, D]
  // Adds to the weight gradients, which are then f32, and does not touch rows of neurons that did
  // not fire. Otherwise everything is overwritten.
  bool accumulate = false;
  // The gradients of the form's vectors, f32; empty: not wanted.
  FormVectors<std::span<float>> vectors = {};
};

void ffn_backward(Context& context, const FfnBackward& in, const FfnGradients& out);

}  // namespace twell
#pragma GCC visibility pop
