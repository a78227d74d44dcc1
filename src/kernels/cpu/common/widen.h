// Codes as numbers of the type of x, in panels.
#pragma once

#include "kernels/kernel.h"

namespace twell {
namespace {

constexpr std::int64_t kCodeStep = 4;  // inputs

// A step of codes, 16 neurons × 4 inputs, as the same inputs of a panel of X.
template <class Isa, class X>
void widen_step(const std::int8_t* step, X* panel) {
  constexpr std::int64_t kPerWord = 4 / sizeof(X);
  for (std::int64_t n = 0; n < kPanel; n += Isa::kLanes) {
    Isa::store_panel(Isa::template widen<X>(step + n * kCodeStep), panel + n * kPerWord);
  }
}

}  // namespace
}  // namespace twell
