// Σ h[i] · W[neuron i] for one token, in f32, and its rounding.
#pragma once

#include <algorithm>

#include "kernels/cpu/common/rows_ahead.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

// y32[k] (+)= Σ over Group rows; y32 (8 KB at D = 2048) stays in L1 while the rows stream by.
template <class Isa, class T, class Ahead, int Group>
void add_rows(const T* const (&w)[4], const T* const (&next)[4], const float (&h)[4],
              std::int64_t cols, bool first, float* y32) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  typename Isa::V coefficient[Group];
  for (int n = 0; n < Group; ++n) coefficient[n] = Isa::broadcast(h[n]);
  std::int64_t k = 0;
  for (; k + Isa::kLanes <= cols; k += Isa::kLanes) {
    if (k % kLine == 0) {
      for (int n = 0; n < 4; ++n) Ahead::fetch(next[n] + k);
    }
    auto y = first ? Isa::zero() : Isa::load(y32 + k);
    for (int n = 0; n < Group; ++n) y = Isa::fma(Isa::load(w[n] + k), coefficient[n], y);
    Isa::store(y32 + k, y);
  }
  for (; k < cols; ++k) {
    float y = first ? 0.0F : y32[k];
    for (int n = 0; n < Group; ++n) y += static_cast<float>(w[n][k]) * h[n];
    y32[k] = y;
  }
}

template <class Isa, class T>
void weighted_rows(const WeightView& weight, const ActiveNeurons& active, bool add, float* y32) {
  if (active.count == 0) {
    if (!add) std::fill_n(y32, weight.cols, 0.0F);
    return;
  }
  const std::int64_t last = active.count - 1;
  const auto row = [&](std::int64_t i) {
    return weight.template row<T>(active.neurons[std::min(i, last)]);
  };
  with_rows_ahead<Isa>(weight.cols * static_cast<std::int64_t>(sizeof(T)), [&]<class Ahead>() {
    for (std::int64_t i = 0; i < active.count;) {
      const T* w[4];
      const T* next[4];
      float h[4];
      take_rows<Ahead>(i, row, w, next);
      for (std::int64_t n = 0; n < 4; ++n) h[n] = active.values[std::min(i + n, last)];
      if (i + 4 <= active.count) {
        add_rows<Isa, T, Ahead, 4>(w, next, h, weight.cols, !add && i == 0, y32);
        i += 4;
      } else {
        add_rows<Isa, T, Ahead, 1>(w, next, h, weight.cols, !add && i == 0, y32);
        i += 1;
      }
    }
  });
}

template <class Isa, class T>
void round_row(const float* y32, std::int64_t cols, void* y_row) {
  T* y = static_cast<T*>(y_row);
  std::int64_t k = 0;
  for (; k + Isa::kLanes <= cols; k += Isa::kLanes) Isa::store(y + k, Isa::load(y32 + k));
  for (; k < cols; ++k) y[k] = static_cast<T>(y32[k]);
}

}  // namespace
}  // namespace twell
