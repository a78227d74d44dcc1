// The two halves of ffn_backward(): by rows, and by neurons.
#pragma once

#include "ops/chosen_products.h"
#include "ops/hot_set.h"
#include "ops/transposed_pattern.h"
#include "twell/train.h"

namespace twell {

// What both halves know. Coefficients are by entry of the transposed pattern.
struct BackwardCall {
  const FfnBackward& in;
  const FfnGradients& out;
  const Kernels& kernels;
  FfnPlan plan;
  TransposedPattern by_neuron;
  HotSet hot;                                        // chosen by the counts of all rows
  float *dv = nullptr, *du = nullptr, *h = nullptr;  // [nnz]; du null in a layer without a gate
};

// dx, and the coefficients.
void backward_rows(Context& context, const BackwardCall& call);
// The weight gradients.
void backward_neurons(Context& context, const BackwardCall& call);

}  // namespace twell
