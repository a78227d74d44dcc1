// What the halves of ffn_backward() share: dx by rows, the weight gradients by neurons
// (weight_gradients.h).
#pragma once

#include "ops/backward/transposed_pattern.h"
#include "ops/chosen_products.h"
#include "ops/hot_set.h"
#include "twell/train.h"

namespace twell {

// dv, du and s w h of the places that fired: what each weight gradient multiplies x, x and dy with.
// And s h q, whose sums are the gradient of what h of a neuron is multiplied with (factor_of()).
enum Coefficient : int { kDv, kDu, kH, kDw, kCoefficientKinds };

// What both halves know.
struct BackwardCall {
  const FfnBackward& in;
  const FfnGradients& out;
  const Kernels& kernels;
  Weight gate;
  std::optional<Weight> up;
  Weight down;
  FfnPlan plan;
  HotSet hot;                   // chosen by the counts of all rows
  TransposedPattern by_neuron;  // of the others
  // Of the others, by entry of by_neuron.
  float* entries[kCoefficientKinds] = {};
  // Of hot neurons, [size of hot, M]: the x of a GEMM over all rows.
  SparseX columns[kCoefficientKinds] = {};

  bool has(int kind) const {
    return kind == kDu ? in.up.has_value() : kind != kDw || scales_hidden(in.form);
  }
};

// dx, and the coefficients.
void backward_rows(Context& context, const BackwardCall& call);

}  // namespace twell
