// A feed-forward layer by dense products alone: what a layer runs whose neurons fire too often for
// the sparse path to be the faster one.
#pragma once

#include <optional>

#include "twell/ffn.h"

namespace twell {

// Packed weights of one dtype with x: Wg [H, D] (Wu without a gate), Wu [H, D], and Wd as
// checkpoints have it, [columns, H].
struct DenseWeights {
  WeightView gate;
  std::optional<WeightView> up;
  WeightView down;
};

// y, and row_nnz and neuron_nnz of `counts` where it is not null, as ffn() sets them, if the rows
// of Wu and Wd are finite. g and h are rounded, once each, and h again where the form scales it; u
// is not.
void dense_ffn(Context& context, ConstMatrixView x, const DenseWeights& weights,
               const FfnForm& form, MatrixView y, FfnCounts* counts);

}  // namespace twell
