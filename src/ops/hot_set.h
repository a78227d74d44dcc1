// Neurons that are multiplied densely because many rows fire them.
#pragma once

#include <initializer_list>

#include "core/team.h"
#include "ops/weight.h"

namespace twell {

class HotSet {
 public:
  // Takes its scratch, for so many neurons.
  HotSet(Context& context, std::int64_t neurons);

  // [H] rows that fired each neuron: written by the caller before choose().
  std::int32_t* counts() const { return counts_; }
  // Called by every thread of a parallel region; ends with a barrier. Takes the neurons that
  // `least` rows or more fired, except those with a row in `finite` that is not: it would make NaN
  // of the zeros of a dense product. Fewer than a panel of them are none.
  void choose(Team& team, double least, std::initializer_list<Weight> finite);

  std::int64_t size() const { return size_; }
  const std::int32_t* list() const { return list_; }  // ascending
  // Where in list(), or -1. Only where there are any.
  std::int32_t place(std::int32_t neuron) const { return place_[neuron]; }
  bool contains(std::int32_t neuron) const { return size_ > 0 && place_[neuron] >= 0; }

 private:
  std::int64_t neurons_;
  std::int64_t size_ = 0;
  std::int32_t *counts_, *list_, *place_;  // [H] each
};

}  // namespace twell
