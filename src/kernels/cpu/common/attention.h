// One query's products with the keys and values of a head. Rows are short (a head's size) and lie
// behind each other, unlike those that a gather takes: 16 keys share one transposing sum, and y
// stays in registers.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace twell {
namespace {

// scores[i] = scale · dot(q, keys[i])
template <class Isa, class T>
void key_scores(const void* query, ConstMatrixView keys, float scale, float* scores) {
  constexpr std::int64_t kDot = Isa::template kDot<T>;
  constexpr std::int64_t kRows = Isa::kLanes;
  const T* const q = static_cast<const T*>(query);
  const std::int64_t cols = keys.cols;
  for (std::int64_t first = 0; first < keys.rows; first += kRows) {
    const std::int64_t count = std::min(kRows, keys.rows - first);
    const T* w[kRows];
    for (std::int64_t n = 0; n < kRows; ++n) w[n] = keys.row<T>(first + std::min(n, count - 1));
    typename Isa::V sums[kRows];
    for (auto& sum : sums) sum = Isa::zero();
    std::int64_t k = 0;
    for (; k + kDot <= cols; k += kDot) {
      for (std::int64_t n = 0; n < kRows; ++n) sums[n] = Isa::dot(sums[n], w[n] + k, q + k);
    }
    for (; k + Isa::kLanes <= cols; k += Isa::kLanes) {
      const auto part = Isa::load(q + k);
      for (std::int64_t n = 0; n < kRows; ++n)
        sums[n] = Isa::fma(Isa::load(w[n] + k), part, sums[n]);
    }
    float dots[kRows];
    Isa::store(dots, Isa::sums(sums));
    for (; k < cols; ++k) {
      for (std::int64_t n = 0; n < count; ++n) {
        dots[n] += static_cast<float>(w[n][k]) * static_cast<float>(q[k]);
      }
    }
    for (std::int64_t n = 0; n < count; ++n) scores[first + n] = scale * dots[n];
  }
}

// Vectors of columns from `col` on. Two sums for each: one would wait for itself.
template <class Isa, class T, int Vectors>
void sum_values(ConstMatrixView values, const float* weights, std::int64_t col, float* y32) {
  typename Isa::V sums[2][Vectors];
  for (auto& half : sums) std::fill_n(half, Vectors, Isa::zero());
  const auto add = [&](std::int64_t row, typename Isa::V(&to)[Vectors]) {
    const T* const v = values.row<T>(row) + col;
    const auto weight = Isa::broadcast(weights[row]);
    for (int i = 0; i < Vectors; ++i) {
      to[i] = Isa::fma(Isa::load(v + i * Isa::kLanes), weight, to[i]);
    }
  };
  std::int64_t row = 0;
  for (; row + 2 <= values.rows; row += 2) {
    add(row, sums[0]);
    add(row + 1, sums[1]);
  }
  if (row < values.rows) add(row, sums[0]);
  for (int i = 0; i < Vectors; ++i) {
    Isa::store(y32 + col + i * Isa::kLanes, Isa::add(sums[0][i], sums[1][i]));
  }
}

// y32 = Σ weights[i] · values[i]
template <class Isa, class T>
void weighted_values(ConstMatrixView values, const float* weights, float* y32) {
  constexpr std::int64_t kBlock = 4 * Isa::kLanes;
  std::int64_t col = 0;
  for (; col + kBlock <= values.cols; col += kBlock) {
    sum_values<Isa, T, 4>(values, weights, col, y32);
  }
  for (; col + Isa::kLanes <= values.cols; col += Isa::kLanes) {
    sum_values<Isa, T, 1>(values, weights, col, y32);
  }
  for (; col < values.cols; ++col) {
    y32[col] = 0;
    for (std::int64_t row = 0; row < values.rows; ++row) {
      y32[col] += weights[row] * static_cast<float>(values.row<T>(row)[col]);
    }
  }
}

}  // namespace
}  // namespace twell
