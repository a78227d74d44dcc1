// u and h = g ⊙ u at the active neurons of one token.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace twell {
namespace {

// Four neurons at a time share the loads of x; meanwhile the next four rows of W are fetched, which
// at 4 KB a row hides most of the latency of L3.
template <class Isa, class T>
void twell_gated_ffn_row(const void* x_row, ConstMatrixView up, const ActiveNeurons& active) {
  constexpr std::int64_t kDot = Isa::template kDot<T>;
  constexpr std::int64_t kGroup = 4;
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const T* x = static_cast<const T*>(x_row);
  const std::int64_t last = active.count - 1;
  for (std::int64_t i = 0; i < active.count; i += kGroup) {
    const T* w[kGroup];
    const T* next[kGroup];
    for (std::int64_t n = 0; n < kGroup; ++n) {
      w[n] = up.row<T>(active.neurons[std::min(i + n, last)]);
      next[n] = up.row<T>(active.neurons[std::min(i + kGroup + n, last)]);
    }
    typename Isa::V acc[kGroup] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
    std::int64_t k = 0;
    for (; k + kDot <= up.cols; k += kDot) {
      if (k % kLine == 0) {
        for (const T* row : next) Isa::prefetch(row + k);
      }
      for (std::int64_t n = 0; n < kGroup; ++n) acc[n] = Isa::dot(acc[n], w[n] + k, x + k);
    }
    for (std::int64_t n = 0; n < std::min(kGroup, active.count - i); ++n) {
      float u = Isa::sum(acc[n]);
      for (std::int64_t tail = k; tail < up.cols; ++tail) {
        u += static_cast<float>(w[n][tail]) * static_cast<float>(x[tail]);
      }
      active.values[i + n] *= u;
    }
  }
}

}  // namespace
}  // namespace twell
