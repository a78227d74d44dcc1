// A matrix cut into pieces of columns, copied so that each piece is dense.
#pragma once

#include <algorithm>

#include "twell/tensor_view.h"

namespace twell {

struct ColumnPieces {
  ConstMatrixView matrix;
  std::int64_t width = 0;
  std::byte* data = nullptr;

  std::int64_t count() const { return (matrix.cols + width - 1) / width; }
  std::int64_t columns(std::int64_t piece) const {
    return std::min(width, matrix.cols - piece * width);
  }
  ConstMatrixView operator[](std::int64_t piece) const {
    const auto before = static_cast<std::size_t>(piece * width * matrix.rows);
    return {data + before * size_of(matrix.dtype), matrix.dtype, matrix.rows, columns(piece)};
  }
  void copy_row(std::int64_t row) const {
    for (std::int64_t p = 0; p < count(); ++p) {
      const ConstMatrixView piece = (*this)[p];
      const std::byte* from =
          matrix.row_bytes(row) + static_cast<std::size_t>(p * width) * size_of(matrix.dtype);
      std::copy_n(from, static_cast<std::size_t>(piece.cols) * size_of(matrix.dtype),
                  const_cast<std::byte*>(piece.row_bytes(row)));
    }
  }
};

}  // namespace twell
