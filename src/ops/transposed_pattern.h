// The places of a pattern by neuron: what the weight gradients walk.
#pragma once

#include "twell/train.h"

namespace twell {

struct TransposedPattern {
  std::int64_t* offsets = nullptr;   // [H + 1]: neuron n has the entries from offsets[n] on
  std::int32_t* rows = nullptr;      // [nnz], ascending within a neuron
  std::int64_t* entry_of = nullptr;  // [nnz] entry of each place of the pattern

  std::int64_t count(std::int64_t neuron) const { return offsets[neuron + 1] - offsets[neuron]; }
};

// By counting, in the context's scratch; the same whatever the number of threads.
TransposedPattern transpose(Context& context, const FfnPatternView& pattern);

}  // namespace twell
