// The gate of a sparse layer (up, in a layer without one), in the form that suits it: as stored
// with its int8 screen (twell/screen.h) where that rules most neurons out; else packed for the
// GEMM.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "twell/ffn.h"

namespace twell::lm {

class SparseGate {
 public:
  // undecided: until decide(), where the tier has screens at all.
  enum class Form : std::uint8_t { undecided, screened, packed };

  // With fewer inputs the axis of a screen (twell/screen.h) is not chosen well enough.
  static constexpr std::int64_t kFewestRows = 32;

  // rows [H, D], contiguous, on any device. On a GPU they are the packed form as they are, where
  // packing would pad nothing; it never reorders there. Screens need a share of pre-activations
  // left of at most `screen_limit`; 0: packs at once. keep_rows: rows() stays there beside a packed
  // copy; on a GPU both are one memory.
  SparseGate(at::Tensor rows, double screen_limit, bool keep_rows);

  // Takes the form, for good, by inputs x [N, D] like those to come, kFewestRows or more: with
  // fewer it is packed. `candidates` runs them with the screen that is made then, and says how many
  // pre-activations it left.
  void decide(const at::Tensor& x, const std::function<std::int64_t()>& candidates);

  // What a packed gate in the layer becomes with neurons in another order (int64 [H] on its
  // device): pairs of a tensor that is in use and what is to be copied into it. Nothing is changed.
  std::vector<std::pair<at::Tensor, at::Tensor>> reordered(const at::Tensor& order) const;

  Form form() const { return form_; }
  // Operands of torch.ops.twell.ffn: the gate, and its screen, if any.
  const at::Tensor& operand() const { return form_ == Form::packed ? packed_ : rows_; }
  const at::Tensor& screen() const { return screen_; }
  // [H, D], as the dense path takes it; undefined where it was given up.
  const at::Tensor& rows() const { return rows_; }
  std::int64_t bytes() const;              // of all that is kept
  double share() const { return share_; }  // of pre-activations that the screen left, when decided

 private:
  void pack();

  Form form_ = Form::undecided;
  double limit_;
  bool keep_rows_;
  std::int64_t neurons_, width_;
  double share_ = 0;
  at::Tensor rows_, packed_, screen_;
};

}  // namespace twell::lm
