// A weight as one value: the type of its numbers, their layout, and where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "twell/dtype.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// The type of the numbers of a weight; x and y have a DType. f16: only on GPUs. int8: codes from
// -128 to 127; int4: from -8 to 7 in blocks (twell/int4.h). A number is exactly its code times its
// scale: a weight of codes is the matrix of these products, and results are as exact for this
// matrix as results of bf16 weights are for theirs. Sums of codes are f32 before they are scaled,
// so inputs of 10³³ and more may overflow, although a sum of scaled numbers
// would not.
enum class WeightType : std::uint8_t { bf16, f16, f32, int8, int4 };
constexpr std::size_t kWeightTypes = 5;

// A block of a row of int4: its inputs, and its bytes.
constexpr std::int64_t kInt4Group = 32, kInt4GroupBytes = 17;

// The differences between types, in rows and in panels (twell/packed.h).
struct WeightTraits {
  const char* name;
  std::int64_t bits;      // of a number
  std::int64_t row_32;    // bytes of 32 numbers of a row
  std::int64_t unit;      // inputs of a panel come in multiples of so many
  std::int64_t head = 0;  // bytes of a neuron in front of a block of its inputs in a panel
  bool scaled = false;
};
constexpr WeightTraits traits_of(WeightType type) {
  // Local, since each tier's objects keep their symbols to themselves.
  constexpr WeightTraits kAll[] = {
      {.name = "bf16", .bits = 16, .row_32 = 64, .unit = 32},
      {.name = "f16", .bits = 16, .row_32 = 64, .unit = 32},
      {.name = "f32", .bits = 32, .row_32 = 128, .unit = 1},
      {.name = "int8", .bits = 8, .row_32 = 32, .unit = 64, .head = 4, .scaled = true},
      {.name = "int4", .bits = 4, .row_32 = kInt4GroupBytes, .unit = 32, .head = 8, .scaled = true},
  };
  static_assert(std::size(kAll) == kWeightTypes, "a row for each type, in their order");
  return kAll[static_cast<std::size_t>(type)];
}
constexpr const char* name_of(WeightType type) { return traits_of(type).name; }
constexpr bool has_scales(WeightType type) { return traits_of(type).scaled; }
// Whether numbers share bytes. Then they are in blocks of 32, have scales of rows, and are gathered
// only by whole rows.
constexpr bool in_blocks(WeightType type) { return traits_of(type).bits < 8; }
// The bytes of an element of memory: a number, or a byte of a block.
constexpr std::int64_t element_bytes(WeightType type) {
  return in_blocks(type) ? 1 : traits_of(type).bits / 8;
}
// The bytes of so many numbers in a row; of whole blocks, if the type has blocks.
constexpr std::int64_t bytes_of(WeightType type, std::int64_t numbers) {
  return numbers * traits_of(type).row_32 / 32;
}

// The type of a matrix as a weight.
constexpr WeightType weight_type(DType dtype) {
  return dtype == DType::bf16  ? WeightType::bf16
         : dtype == DType::f16 ? WeightType::f16
                               : WeightType::f32;
}
// The inverse, of types that are a dtype.
constexpr DType as_dtype(WeightType type) {
  return type == WeightType::bf16 ? DType::bf16 : type == WeightType::f16 ? DType::f16 : DType::f32;
}
// Whether x and y of a dtype go with a weight of a type.
constexpr bool goes_with(DType x, WeightType weight) {
  return weight == weight_type(x) || (has_scales(weight) && x != DType::f16);
}

// rows: as a checkpoint has them; panels: as the GEMM kernels read them (twell/packed.h).
enum class WeightLayout : std::uint8_t { rows, panels };

// Which codes share a scale. A checkpoint has a scale for each output of a matrix: a row of Wg and
// Wu, and a column of the neuron-major Wd.
enum class ScaledBy : std::uint8_t { row, column };

// W [rows, cols], neurons × inputs, in memory that the caller owns, with its scales if the type has
// them: kernels get a weight as this one value. As in BasicMatrixView, `data` may be null only if
// rows * cols == 0.
struct WeightView {
  const void* data = nullptr;
  WeightType type = WeightType::f32;
  WeightLayout layout = WeightLayout::rows;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;    // numbers from row to row; cols for panels, which have no rows
  const float* scales = nullptr;  // [rows] or [cols], finite; null: there are none
  ScaledBy scaled_by = ScaledBy::row;

  WeightView() = default;
  // A matrix is a weight of rows.
  template <class Void>
  WeightView(const BasicMatrixView<Void>& matrix)  // NOLINT(google-explicit-constructor)
      : data(matrix.data),
        type(weight_type(matrix.dtype)),
        rows(matrix.rows),
        cols(matrix.cols),
        row_stride(matrix.row_stride) {}
  // Codes as they are stored; rows of blocks follow one another.
  static WeightView codes(WeightType type, const void* data, std::int64_t rows, std::int64_t cols,
                          std::int64_t row_stride, const float* scales,
                          ScaledBy scaled_by = ScaledBy::row) {
    WeightView out;
    out.data = data;
    out.type = type;
    out.rows = rows;
    out.cols = cols;
    out.row_stride = row_stride;
    out.scales = scales;
    out.scaled_by = scaled_by;
    return out;
  }

  // The following are for rows; matrix() is for types that are a dtype, row() not for blocks.
  ConstMatrixView matrix() const { return {data, as_dtype(type), rows, cols, row_stride}; }
  template <class T>
  const T* row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * row_stride;
  }
  const std::byte* row_bytes(std::int64_t r) const {
    return static_cast<const std::byte*>(data) + bytes_of(type, r * row_stride);
  }
  // Columns [first, first + count) of every row; only whole blocks.
  WeightView columns(std::int64_t first, std::int64_t count) const {
    WeightView out = *this;
    out.data = static_cast<const std::byte*>(data) + bytes_of(type, first);
    out.cols = count;
    if (scales != nullptr && scaled_by == ScaledBy::column) out.scales = scales + first;
    return out;
  }
  std::int64_t scale_count() const {
    return scales == nullptr ? 0 : scaled_by == ScaledBy::row ? rows : cols;
  }
  // The factor of a dot product with the codes of a row.
  float row_scale(std::int64_t r) const {
    return scales != nullptr && scaled_by == ScaledBy::row ? scales[r] : 1.0F;
  }
  // [cols], the factors of sums of rows of codes; null: none.
  const float* column_scales() const { return scaled_by == ScaledBy::column ? scales : nullptr; }
};

}  // namespace twell
#pragma GCC visibility pop
