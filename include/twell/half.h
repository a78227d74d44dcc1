// IEEE binary16, as files have it, to binary32 and back.
#pragma once

#include <bit>
#include <cstdint>

#pragma GCC visibility push(default)
namespace twell {

// Exact, also where the processor takes subnormal f32 for zero: none comes up. What is infinite or
// NaN stays so.
constexpr float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16, magnitude = half & 0x7FFFU;
  // The exponent's new bias is 112 more, and 224 where it is the largest.
  std::uint32_t bits = (magnitude << 13) + (112U << 23);
  if (magnitude >= 0x7C00U) bits += 112U << 23;
  if (magnitude < 0x400U) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  }
  return std::bit_cast<float>(bits | sign);
}

// To the nearest, ties to even; beyond the range infinite.
constexpr std::uint16_t half_of_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits & 0x80000000U) >> 16);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  constexpr std::uint32_t kInfinite = 0x7F800000U, kTooLarge = 0x47800000U;  // 2^16
  constexpr std::uint32_t kSmallestNormal = 0x38800000U;                     // 2^-14
  std::uint32_t half = 0;
  if (magnitude > kInfinite) {
    half = 0x7E00U;
  } else if (magnitude >= kTooLarge) {
    half = 0x7C00U;
  } else if (magnitude < kSmallestNormal) {
    // The sum's last bit is 2^-24, as that of a binary16 without a leading one.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    half = (magnitude - (112U << 23) + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(half | sign);
}

}  // namespace twell
#pragma GCC visibility pop
