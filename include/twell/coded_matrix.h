// Codes and their scales in one matrix of bytes, for callers who hand weights on as tensors: the
// codes lie row after row, and the scales, f32, behind them at the next multiple of 4. The matrix
// is made up to whole rows. So its shape tells all, to one who knows what its scales are of. int8
// has signed bytes, a column each; int4 has unsigned ones, and scales of rows (twell/int4.h).
// `cols` are bytes below.
#pragma once

#include <cstdint>

#include "twell/weight.h"

namespace twell {

// Rows of the matrix of bytes, for at least one column.
constexpr std::int64_t coded_extent(std::int64_t rows, std::int64_t cols, ScaledBy by) {
  const std::int64_t scales = by == ScaledBy::row ? rows : cols;
  const std::int64_t padding = cols % 4 == 0 ? 0 : 3;  // of any number of rows
  return rows + (padding + 4 * scales + cols - 1) / cols;
}
// The inverse: the rows of codes in a matrix of `extent` rows; -1 where there is no such one.
constexpr std::int64_t coded_rows(std::int64_t extent, std::int64_t cols, ScaledBy by) {
  if (cols < 1) return -1;
  // At most, and at most three too many.
  std::int64_t rows =
      by == ScaledBy::row ? extent * cols / (cols + 4) : extent - coded_extent(0, cols, by);
  while (rows > 0 && coded_extent(rows, cols, by) > extent) --rows;
  return rows > 0 && coded_extent(rows, cols, by) == extent ? rows : -1;
}
// Where the scales begin, in bytes.
constexpr std::int64_t coded_scales_at(std::int64_t rows, std::int64_t cols) {
  return (rows * cols + 3) / 4 * 4;
}
// int8 as a weight. `data`: at a multiple of 4.
inline WeightView coded_view(const void* data, std::int64_t rows, std::int64_t cols, ScaledBy by) {
  const auto* const codes = static_cast<const std::int8_t*>(data);
  const auto* const scales = reinterpret_cast<const float*>(codes + coded_scales_at(rows, cols));
  return WeightView::codes(codes, rows, cols, cols, scales, by);
}

// The same of int4, whose rows are of whole blocks.
inline WeightView int4_view(const void* data, std::int64_t rows, std::int64_t row_bytes) {
  const auto* const bytes = static_cast<const std::uint8_t*>(data);
  const auto* const scales =
      reinterpret_cast<const float*>(bytes + coded_scales_at(rows, row_bytes));
  return WeightView::int4(bytes, rows, row_bytes / 17 * 32, scales);
}

}  // namespace twell
