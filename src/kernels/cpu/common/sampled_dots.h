// Dot products of one token with the rows of its active neurons.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/common/rows_ahead.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

// Rows of a weight that are multiplied with the same x at a time.
constexpr std::int64_t kDotRows = 4;

// out[n] = dot(x, w[n]) for N rows; meanwhile the rows `next` are fetched. Two sums for each row:
// one would wait for itself. Inlined by force: it has two callers, and as a call it takes 9 %
// longer.
template <class Isa, class Ahead, int N, class T, class W>
[[gnu::always_inline]] inline void dot_rows(const T* x, const W* const (&w)[kDotRows],
                                            const W* const (&next)[kDotRows], std::int64_t cols,
                                            float* out) {
  constexpr std::int64_t kDot = std::is_same_v<T, W> ? Isa::template kDot<T> : Isa::kLanes;
  constexpr std::int64_t kLine = 64 / sizeof(W);
  // Loops over rows are unrolled by name: by itself g++ 12 does it so late that sums stay in
  // memory, and a row takes 1.5 times as long.
  typename Isa::V sums[N][2];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) sums[n][0] = sums[n][1] = Isa::zero();
  std::int64_t k = 0;
  for (; k + 2 * kDot <= cols; k += 2 * kDot) {
    for (std::int64_t line = k; line < k + 2 * kDot; line += kDot) {
      if (line % kLine != 0) continue;
#pragma GCC unroll 4
      for (const W* row : next) Ahead::fetch(row + line);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      sums[n][0] = Isa::dot(sums[n][0], w[n] + k, x + k);
      sums[n][1] = Isa::dot(sums[n][1], w[n] + k + kDot, x + k + kDot);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    out[n] = Isa::sum(Isa::add(sums[n][0], sums[n][1]));
    for (std::int64_t tail = k; tail < cols; ++tail) {
      out[n] += static_cast<float>(w[n][tail]) * static_cast<float>(x[tail]);
    }
  }
}

template <class Isa, class Ahead, class T, class W>
[[gnu::always_inline]] inline void dot_rows(std::int64_t count, const T* x,
                                            const W* const (&w)[kDotRows],
                                            const W* const (&next)[kDotRows], std::int64_t cols,
                                            float* out) {
  switch (count) {
    case 1:
      return dot_rows<Isa, Ahead, 1>(x, w, next, cols, out);
    case 2:
      return dot_rows<Isa, Ahead, 2>(x, w, next, cols, out);
    case 3:
      return dot_rows<Isa, Ahead, 3>(x, w, next, cols, out);
    default:
      return dot_rows<Isa, Ahead, 4>(x, w, next, cols, out);
  }
}

// x of T, rows of W.
template <class Isa, class T, class W>
void sampled_dots(const void* x_row, const WeightView& weight, const std::int32_t* neurons,
                  std::int64_t count, float* dots) {
  const T* x = static_cast<const T*>(x_row);
  const auto row = [&](std::int64_t i) {
    return weight.template row<W>(neurons[std::min(i, count - 1)]);
  };
  with_rows_ahead<Isa>(weight.cols * static_cast<std::int64_t>(sizeof(W)), [&]<class Ahead>() {
    for (std::int64_t i = 0; i < count; i += kDotRows) {
      const W* w[kDotRows];
      const W* next[kDotRows];
      take_rows<Ahead>(i, row, w, next);
      dot_rows<Isa, Ahead>(std::min(kDotRows, count - i), x, w, next, weight.cols, dots + i);
    }
  });
  if constexpr (!std::is_same_v<T, W>) {
    for (std::int64_t i = 0; i < count; ++i) dots[i] *= weight.row_scale(neurons[i]);
  }
}

}  // namespace
}  // namespace twell
