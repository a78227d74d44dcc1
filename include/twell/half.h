// IEEE binary16, as files have it, to binary32 and back.
#pragma once

#include <bit>
#include <cstdint>

#pragma GCC visibility push(default)
namespace twell {

// Exact; what is infinite or NaN stays so.
constexpr float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  // The exponent's new bias is 112 more.
  constexpr float kScale = 0x1p112F;
  const float magnitude =
      std::bit_cast<float>(static_cast<std::uint32_t>(half & 0x7FFFU) << 13) * kScale;
  const bool finite = (half & 0x7C00U) != 0x7C00U;
  const std::uint32_t bits = finite ? std::bit_cast<std::uint32_t>(magnitude)
                                    : 0x7F800000U | static_cast<std::uint32_t>(half & 0x3FFU) << 13;
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
