// A weight as one value: what its numbers are, how they lie, and where.
#pragma once

#include <cstddef>
#include <cstdint>

#include "twell/dtype.h"
#include "twell/tensor_view.h"

namespace twell {

// What the numbers of a weight are: its own affair, while x and y have a DType. f16: on GPUs.
enum class WeightType : std::uint8_t { bf16, f16, f32 };

// That of a matrix.
constexpr WeightType weight_type(DType dtype) {
  return dtype == DType::bf16  ? WeightType::bf16
         : dtype == DType::f16 ? WeightType::f16
                               : WeightType::f32;
}
constexpr const char* name_of(WeightType type) {
  return type == WeightType::bf16 ? "bf16" : type == WeightType::f16 ? "f16" : "f32";
}
// The inverse, of types that are a dtype.
constexpr DType as_dtype(WeightType type) {
  return type == WeightType::bf16 ? DType::bf16 : type == WeightType::f16 ? DType::f16 : DType::f32;
}
// Whether x and y of a dtype go with a weight of a type.
constexpr bool goes_with(DType x, WeightType weight) { return weight == weight_type(x); }
// Of so many numbers in a row.
constexpr std::int64_t bytes_of(WeightType type, std::int64_t numbers) {
  return type == WeightType::f32 ? 4 * numbers : 2 * numbers;
}

// rows: as a checkpoint has them; panels: as the GEMM kernels read them (twell/packed.h).
enum class WeightLayout : std::uint8_t { rows, panels };

// W [rows, cols], neurons × inputs, in memory of somebody else. A type whose numbers have scales
// finds them here too: kernels get a weight as this one value. As BasicMatrixView, `data` may be
// null only where rows * cols == 0.
struct WeightView {
  const void* data = nullptr;
  WeightType type = WeightType::f32;
  WeightLayout layout = WeightLayout::rows;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // numbers from row to row; of panels, which have none, cols

  WeightView() = default;
  // A matrix is a weight of rows.
  template <class Void>
  WeightView(const BasicMatrixView<Void>& matrix)  // NOLINT(google-explicit-constructor)
      : data(matrix.data),
        type(weight_type(matrix.dtype)),
        rows(matrix.rows),
        cols(matrix.cols),
        row_stride(matrix.row_stride) {}
  static WeightView panels(const void* data, WeightType type, std::int64_t rows,
                           std::int64_t cols) {
    WeightView out;
    out.data = data;
    out.type = type;
    out.layout = WeightLayout::panels;
    out.rows = rows;
    out.cols = out.row_stride = cols;
    return out;
  }

  // The following are of rows.
  ConstMatrixView matrix() const { return {data, as_dtype(type), rows, cols, row_stride}; }
  template <class T>
  const T* row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * row_stride;
  }
  const std::byte* row_bytes(std::int64_t r) const {
    return static_cast<const std::byte*>(data) + bytes_of(type, r * row_stride);
  }
  // Columns [first, first + count) of every row.
  WeightView columns(std::int64_t first, std::int64_t count) const {
    WeightView out = *this;
    out.data = static_cast<const std::byte*>(data) + bytes_of(type, first);
    out.cols = count;
    return out;
  }
};

}  // namespace twell
