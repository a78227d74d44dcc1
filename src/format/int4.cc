#include "twell/int4.h"

#include <algorithm>
#include <cmath>

namespace twell {

bool make_int4_row(const std::int8_t* codes, const float* scales, std::int64_t cols,
                   std::uint8_t* row, float* row_scale) {
  constexpr std::uint32_t kMantissa = 0x7fffffU, kKept = 0x780000U;
  constexpr int kOctaves = 15;
  const auto is_zero = [&](std::int64_t first) {
    return std::all_of(codes + first, codes + first + kInt4Group, [](int c) { return c == 0; });
  };
  float largest = 0;
  for (std::int64_t k = 0; k < cols; k += kInt4Group) {
    const float scale = scales[k / kInt4Group];
    if (is_zero(k)) continue;
    if (!(scale > 0) || !std::isnormal(scale)) return false;
    largest = std::max(largest, scale);
  }
  const int top = largest > 0 ? std::ilogb(largest) : 0;
  // What is multiplied by it stays normal.
  if (top < -100 || top > 100) return false;
  *row_scale = std::ldexp(1.0F, top);
  for (std::int64_t k = 0; k < cols; k += kInt4Group, row += kInt4GroupBytes) {
    std::fill_n(row, kInt4GroupBytes, std::uint8_t{0x88});  // codes of zero, of any scale
    if (is_zero(k)) continue;
    const float scale = scales[k / kInt4Group];
    const std::uint32_t mantissa = std::bit_cast<std::uint32_t>(scale) & kMantissa;
    const int exponent = std::ilogb(scale) - top + kOctaves;
    if ((mantissa & ~kKept) != 0 || exponent < 0) return false;
    row[0] =
        static_cast<std::uint8_t>(static_cast<std::uint32_t>(exponent) << 4U | mantissa >> 19U);
    for (std::int64_t i = 0; i < kInt4Group / 2; ++i) {
      const auto low = static_cast<std::uint32_t>(codes[k + i] + 8);
      const auto high = static_cast<std::uint32_t>(codes[k + kInt4Group / 2 + i] + 8);
      row[1 + i] = static_cast<std::uint8_t>(low | high << 4U);
    }
  }
  return true;
}

}  // namespace twell
