// Codes and their scales in one matrix of bytes, for callers that pass weights on as tensors. The
// codes come row after row, and the f32 scales follow at the next multiple of 4. The matrix is
// padded to whole rows. So its shape says everything, except whether the scales are of rows or of
// columns. Blocks of int4 (twell/int4.h) have scales of rows. `cols` are bytes below.
#pragma once

#include <cstdint>
#include <optional>

#include "twell/weight.h"

#pragma GCC visibility push(default)
namespace twell {

class Context;

// Rows of the matrix of bytes, for at least one column.
constexpr std::int64_t coded_extent(std::int64_t rows, std::int64_t cols, ScaledBy by) {
  const std::int64_t scales = by == ScaledBy::row ? rows : cols;
  const std::int64_t padding = cols % 4 == 0 ? 0 : 3;  // of any number of rows
  return rows + (padding + 4 * scales + cols - 1) / cols;
}
// The inverse: the rows of codes in a matrix of `extent` rows; -1 if there is no such number.
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
// Such a matrix as a weight of codes; none if the type has no such shape. `data` is at a multiple
// of 4. Blocks have scales of rows, whatever `by` is.
inline std::optional<WeightView> coded_view(WeightType type, const void* data, std::int64_t extent,
                                            std::int64_t cols, ScaledBy by) {
  if (in_blocks(type)) by = ScaledBy::row;
  const std::int64_t rows = coded_rows(extent, cols, by);
  const std::int64_t numbers = 32 * cols / traits_of(type).row_32;
  if (rows < 0 || bytes_of(type, numbers) != cols) return {};
  const auto* const scales = static_cast<const std::byte*>(data) + coded_scales_at(rows, cols);
  return WeightView::codes(type, data, rows, numbers, numbers,
                           reinterpret_cast<const float*>(scales), by);
}

// Turns panels of codes, as pack_weight() wrote them, back into such a matrix: coded_extent() rows
// of bytes_of(type, cols) bytes at `matrix`, which is a multiple of 4; scales of rows. `context`:
// as for pack_weight().
void unpack_codes(const WeightView& panels, void* matrix, const Context* context = nullptr);

}  // namespace twell
#pragma GCC visibility pop
