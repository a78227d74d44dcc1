// act(x Wgᵀ + bg) of a block of rows, packed into the context's scratch: by the GEMM on the packed
// weight or by way of its screen.
#pragma once

#include "ops/gemm_input.h"
#include "ops/terms_input.h"
#include "ops/weight.h"
#include "twell/context.h"

namespace twell {

class Gate {
 public:
  // Takes its scratch: no call below allocates. x: its dtype. `out` has plan.row_block rows.
  // `bias`: [H], or empty.
  Gate(Context& context, const FfnPlan& plan, const FfnWeights& weights, DType x,
       const ActivationSpec& activation, std::span<const float> bias, const TwellView& out);

  // The rows x of a block come next; one thread calls this.
  void begin(ConstMatrixView x);

  // The following are called by every thread of a parallel region, in this order; each ends with a
  // barrier.

  // Packs the activation of the block; returns the pre-activations that this thread computed beside
  // a screen.
  std::int64_t run(Team& team);
  // x as the tier's GEMM reads it, for others: already there where the packed gate was multiplied.
  void prepare_x(Team& team);

  std::int64_t rows() const { return input_.x.rows; }
  const TwellView& out() const { return out_; }
  // All rows of the block, for a weight of the same inputs.
  GemmArgs gemm_args() const { return input_.args(prepared_, 0, rows()); }

 private:
  // First row of a group: where a tile of x begins, if x is in tiles.
  std::int64_t group_begin(std::int64_t group) const;
  // What a column block of sums from neuron `first` on is packed by.
  PackArgs pack_args(const float* c, std::int64_t begin, std::int64_t end, std::int64_t first,
                     std::int64_t columns) const;
  void run_packed(std::int64_t begin, std::int64_t end, std::int64_t tile, float* c) const;
  std::int64_t run_screened(std::int64_t begin, std::int64_t end, std::int64_t tile, float* c,
                            void* candidates) const;

  Context& context_;
  const FfnPlan& plan_;
  const Kernels& kernels_;
  ActivationSpec activation_;
  std::span<const float> bias_;
  TwellView out_;
  Weight weight_;    // panels, or with a screen the rows as stored
  GemmInput input_;  // the block's rows
  void* prepared_ = nullptr;
  TermsInput terms_;  // the same for a gate of codes
  CodeTerms* terms_memory_ = nullptr;
  ScreenParts screen_;  // with a screen
  ScreenedRows x8_;
};

}  // namespace twell
