#include <cmath>

#include "kernels/ref/ref.h"

namespace twell::ref {

Result twell_spmm(const Matrix& hidden, const Matrix& down) {
  Result out{Matrix(hidden.rows, down.cols), Matrix(hidden.rows, down.cols)};
  for (std::int64_t r = 0; r < hidden.rows; ++r) {
    for (std::int64_t n = 0; n < hidden.cols; ++n) {
      const double h = hidden.at(r, n);
      if (h == 0.0) continue;  // false for NaN
      for (std::int64_t c = 0; c < down.cols; ++c) {
        out.value.at(r, c) += h * down.at(n, c);
        out.magnitude.at(r, c) += std::abs(h * down.at(n, c));
      }
    }
  }
  return out;
}

}  // namespace twell::ref
