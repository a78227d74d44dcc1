// Codes as numbers of the type of x, in panels.
#pragma once

#include <cstring>

#include "kernels/kernel.h"

namespace twell {
namespace {

constexpr std::int64_t kCodeStep = 4;  // inputs

// A step of codes, 16 neurons × 4 inputs, as the same inputs of a panel of X: words of one input
// (f32) or two (bf16) of each neuron.
template <class Isa, class X>
void widen_step(const std::int8_t* step, X* panel) {
  for (std::int64_t n = 0; n < kPanel; n += Isa::kLanes) {
    const auto inputs = Isa::template widen<X>(step + n * kCodeStep);
    auto* to = reinterpret_cast<std::byte*>(panel) + n * 4;
    for (const auto& of_neurons : inputs.of) {
      std::memcpy(to, &of_neurons, sizeof of_neurons);
      to += kPanel * 4;
    }
  }
}

}  // namespace
}  // namespace twell
