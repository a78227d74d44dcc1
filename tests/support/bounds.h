// Error bounds from magnitudes.
//
// A sum of n terms accumulated in f32 in any order, with any grouping of products, errs by at most
// (n + 2) u Σ|term| to first order, u = 2⁻²⁴ (Higham, Accuracy and Stability, section 4.2). AMX and
// vdpbf16ps flush denormal products and sums, at most 2⁻¹²⁶ each. Rounding a result to its dtype
// adds half a unit in the last place: 2⁻⁸ relative for bf16 (at least half its smallest denormal),
// 2⁻²⁴ for f32.
#pragma once

#include <cmath>

#include "twell/dtype.h"

namespace twell::test {

inline double accumulation_bound(double terms, double magnitude) {
  return (terms + 2.0) * (std::ldexp(magnitude, -24) + std::ldexp(1.0, -126));
}

template <class T>
double rounding_bound(double value) {
  const int bits = dtype_of<T>::value == DType::bf16 ? 8 : 24;
  return std::ldexp(std::abs(value), -bits) + std::ldexp(1.0, -134);
}

}  // namespace twell::test
