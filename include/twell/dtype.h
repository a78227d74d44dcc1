// Element types and their conversions. bfloat16 rounds to nearest even, as PyTorch does.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
namespace twell {

// The element types.
enum class DType : std::uint8_t { bf16, f16, f32 };

// Bytes of an element.
constexpr std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
// "bf16", "f16" or "f32".
constexpr const char* name_of(DType dtype) {
  return dtype == DType::bf16 ? "bf16" : dtype == DType::f16 ? "f16" : "f32";
}

// bfloat16: the upper half of an IEEE binary32.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) : bits(round(value)) {}
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static constexpr bf16 from_bits(std::uint16_t raw) {
    bf16 out;
    out.bits = raw;
    return out;
  }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    // Adding to a NaN's payload could carry into an infinity. So keep the sign, and make it quiet.
    if ((word & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((word >> 16) | 0x40U);
    return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
};

// The DType of a C++ type.
template <class T>
struct dtype_of;
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};

}  // namespace twell
#pragma GCC visibility pop
