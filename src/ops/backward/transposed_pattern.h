// The places of a pattern by neuron: what the weight gradients of neurons that few rows fired walk.
#pragma once

#include "ops/hot_set.h"
#include "twell/train.h"

namespace twell {

struct TransposedPattern {
  std::int64_t* offsets = nullptr;   // [H + 1]: neuron n has the entries from offsets[n] on
  std::int32_t* rows = nullptr;      // of each entry, ascending within a neuron
  std::int64_t* entry_of = nullptr;  // [nnz] entry of each place of the pattern; hot ones have none

  std::int64_t count(std::int64_t neuron) const { return offsets[neuron + 1] - offsets[neuron]; }
};

// Chooses the hot neurons by their counts, of which at least `least`, and transposes the places of
// the others, by counting, in the context's scratch: the same whatever the number of threads.
TransposedPattern transpose(Context& context, const FfnPatternView& pattern, HotSet& hot,
                            double least, std::initializer_list<Weight> finite);

}  // namespace twell
