// Matrices and activity patterns for tests and benchmarks: one set of generators for both.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "twell/dtype.h"
#include "twell/tensor_view.h"

namespace twell::test {

// An owning row-major matrix of T with `padding` poisoned elements after each row.
template <class T>
class TestMatrix {
 public:
  TestMatrix() : TestMatrix(0, 0) {}
  TestMatrix(std::int64_t rows, std::int64_t cols, std::int64_t padding = 0)
      : rows_(rows), cols_(cols), stride_(cols + padding), data_(size(rows, stride_)) {
    for (T& value : data_) value = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  }

  T& at(std::int64_t r, std::int64_t c) {
    return data_[size(r, stride_) + static_cast<std::size_t>(c)];
  }
  const T& at(std::int64_t r, std::int64_t c) const {
    return data_[size(r, stride_) + static_cast<std::size_t>(c)];
  }
  float value(std::int64_t r, std::int64_t c) const { return static_cast<float>(at(r, c)); }
  void set(std::int64_t r, std::int64_t c, float v) { at(r, c) = static_cast<T>(v); }

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  MatrixView view() { return {data_.data(), dtype_of<T>::value, rows_, cols_, stride_}; }
  ConstMatrixView view() const { return {data_.data(), dtype_of<T>::value, rows_, cols_, stride_}; }

  template <class F>
  void fill(F f) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) set(r, c, f(r, c));
    }
  }

 private:
  static std::size_t size(std::int64_t a, std::int64_t b) {
    return static_cast<std::size_t>(a * b);
  }

  std::int64_t rows_, cols_, stride_;
  std::vector<T> data_;
};

// Whether all numbers are the same, of matrices of one shape.
template <class T>
bool same(const TestMatrix<T>& a, const TestMatrix<T>& b) {
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      if (a.value(r, c) != b.value(r, c)) return false;
    }
  }
  return true;
}

template <class T>
TestMatrix<T> random_matrix(std::int64_t rows, std::int64_t cols, unsigned seed, float scale = 1.0F,
                            std::int64_t padding = 0) {
  TestMatrix<T> m(rows, cols, padding);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  m.fill([&](std::int64_t, std::int64_t) { return normal(random); });
  return m;
}

// Which hidden columns of a row are active.
enum class Pattern {
  none,       // every row empty
  full,       // every row fully dense
  one_dense,  // one dense row among empty ones
  shared,     // all rows share the same neurons
  disjoint,   // no neuron is used by two rows
  random1,    // 1 % at random
  random50,   // half at random
};
constexpr Pattern kAllPatterns[] = {Pattern::none,    Pattern::full,     Pattern::one_dense,
                                    Pattern::shared,  Pattern::disjoint, Pattern::random1,
                                    Pattern::random50};

inline bool active(Pattern pattern, std::int64_t rows, std::int64_t r, std::int64_t c,
                   std::mt19937& random) {
  switch (pattern) {
    case Pattern::none:
      return false;
    case Pattern::full:
      return true;
    case Pattern::one_dense:
      return r == rows / 2;
    case Pattern::shared:
      return c % 7 == 3;
    case Pattern::disjoint:
      return c % rows == r;
    case Pattern::random1:
      return random() % 100 == 0;
    case Pattern::random50:
      return random() % 2 == 0;
  }
  return false;
}

// A hidden activation with non-negative values at the active places and zeros elsewhere.
template <class T>
TestMatrix<T> activation_matrix(Pattern pattern, std::int64_t rows, std::int64_t cols,
                                unsigned seed) {
  TestMatrix<T> m(rows, cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  m.fill([&](std::int64_t r, std::int64_t c) {
    return active(pattern, rows, r, c, random) ? std::abs(normal(random)) + 0.01F : 0.0F;
  });
  return m;
}

}  // namespace twell::test
