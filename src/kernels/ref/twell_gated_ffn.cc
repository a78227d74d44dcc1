#include <cmath>

#include "kernels/ref/ref.h"

namespace twell::ref {

Result twell_gated_ffn(const Matrix& x, const Matrix& gate, const Matrix& up, const Matrix& down) {
  Result out{Matrix(x.rows, down.cols), Matrix(x.rows, down.cols)};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t n = 0; n < gate.cols; ++n) {
      const double g = gate.at(r, n);
      if (g == 0.0) continue;  // false for NaN
      double u = 0.0;
      double magnitude = 0.0;
      for (std::int64_t k = 0; k < x.cols; ++k) {
        const double term = x.at(r, k) * up.at(n, k);
        u += term;
        magnitude += std::abs(term);
      }
      for (std::int64_t c = 0; c < down.cols; ++c) {
        out.value.at(r, c) += g * u * down.at(n, c);
        out.magnitude.at(r, c) += std::abs(g) * magnitude * std::abs(down.at(n, c));
      }
    }
  }
  return out;
}

}  // namespace twell::ref
