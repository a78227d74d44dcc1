#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"
#include "twell/packed.h"

namespace twell::ref {

Matrix round_inputs(const Matrix& x) {
  Matrix y = x;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t first = 0; first < x.cols; first += kCodeBlock) {
      const std::int64_t end = std::min(first + kCodeBlock, x.cols);
      double largest = 0.0;
      bool finite = true;
      for (std::int64_t k = first; k < end; ++k) {
        finite &= std::isfinite(x.at(r, k));
        largest = std::max(largest, std::abs(x.at(r, k)));
      }
      if (!finite || largest < double{1e-30F}) continue;
      const int exponent = std::ilogb(largest) + 1;
      double unit = std::ldexp(1.0, exponent - 7);
      if (largest / unit >= 127.5) unit *= 2;
      for (std::int64_t k = first; k < end; ++k) {
        const double whole = std::nearbyint(x.at(r, k) / unit);
        const bool infinite = std::abs(whole * unit) >= std::ldexp(1.0, 128);
        y.at(r, k) = (infinite ? std::copysign(63.0, whole) : whole) * unit;
      }
    }
  }
  return y;
}

}  // namespace twell::ref
