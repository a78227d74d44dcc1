// Non-owning row-major matrices. A view never allocates, copies or frees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "twell/dtype.h"

#pragma GCC visibility push(default)
namespace twell {

// rows × cols elements of `dtype`; element (r, c) lies at data + (r * row_stride + c) elements.
// row_stride >= cols. `data` may be null only if rows * cols == 0.
template <class Void>
struct BasicMatrixView {
  Void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;

  BasicMatrixView() = default;
  BasicMatrixView(Void* data_, DType dtype_, std::int64_t rows_, std::int64_t cols_)
      : BasicMatrixView(data_, dtype_, rows_, cols_, cols_) {}
  BasicMatrixView(Void* data_, DType dtype_, std::int64_t rows_, std::int64_t cols_,
                  std::int64_t row_stride_)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), row_stride(row_stride_) {}
  // A mutable view is also a constant one.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicMatrixView(const BasicMatrixView<Other>& other)  // NOLINT(google-explicit-constructor)
      : BasicMatrixView(other.data, other.dtype, other.rows, other.cols, other.row_stride) {}

  template <class T>
  auto* row(std::int64_t r) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + r * row_stride;
  }
  // The start of a row, whatever its elements are.
  auto* row_bytes(std::int64_t r) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return static_cast<Byte*>(data) + r * row_stride * static_cast<std::int64_t>(size_of(dtype));
  }
  // Rows [first, first + count).
  BasicMatrixView slice(std::int64_t first, std::int64_t count) const {
    return {row_bytes(first), dtype, count, cols, row_stride};
  }
};

using MatrixView = BasicMatrixView<void>;
using ConstMatrixView = BasicMatrixView<const void>;

}  // namespace twell
#pragma GCC visibility pop
