// binary16 in software: conversions of one value, to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "twell/dtype.h"

namespace twell::test {

constexpr float widen_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float value = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -value : value;
}

inline std::uint16_t round_half(float value) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(word >> 16 & 0x8000U);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7fffU);
  const float magnitude = std::abs(value);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7c00U);
  // A step of the format at this magnitude; dividing by it is exact.
  const int exponent = magnitude < 0x1p-14F ? -14 : std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // Counted from the start of the binade; a carry moves into the exponent by itself.
  const auto base = static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | (base + static_cast<std::uint32_t>(steps)));
}

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(float value) : bits(round_half(value)) {}
  explicit operator float() const { return widen_half(bits); }
};

}  // namespace twell::test

template <>
struct twell::dtype_of<twell::test::Half> {
  static constexpr twell::DType value = twell::DType::f16;
};
