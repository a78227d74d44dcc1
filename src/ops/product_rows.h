// y of a product whose f32 sums kernels give a piece at a time.
#pragma once

#include <cstring>

#include "kernels/kernel.h"
#include "ops/validate.h"

namespace twell {

// y [M, N] of x's dtype or f32.
inline void require_product(const char* operation, ConstMatrixView x, std::int64_t outputs,
                            MatrixView y) {
  require_matrix(operation, "y", y, y.dtype == DType::f32 ? DType::f32 : x.dtype, x.rows, outputs);
  require_apart(operation, "y", y, "x", x);
}

struct ProductRows {
  MatrixView y;
  void (*round_row)(const float* y32, std::int64_t cols, void* y) = nullptr;

  ProductRows(const Context& context, MatrixView y_)
      : y(y_), round_row(kernels_of(context.tier(), y_.dtype).round_row) {}

  void put(std::int64_t row, std::int64_t column, std::int64_t count, const float* sums) const {
    round_row(sums, count, y.row_bytes(row) + column * static_cast<std::int64_t>(size_of(y.dtype)));
  }
};

}  // namespace twell
