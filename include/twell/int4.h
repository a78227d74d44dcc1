// Weights of 4 bits, with a scale for every 32 inputs.
//
// A row is cut into blocks of 32 inputs, 17 bytes each: a scale, and 16 bytes of codes from -8 to
// 7, each plus 8. The low half of byte i is input i, the high half input 16 + i. A scale is four
// bits e and four bits m, and stands for (1 + m/16) · 2^(e - 15). The row also has a power of two
// (f32):
//   number = code · scale of the block · scale of the row
// A code has at most 3 significant bits and its scale 5, so bf16 holds every number.
#pragma once

#include <bit>
#include <cstdint>

#include "twell/weight.h"

#pragma GCC visibility push(default)
namespace twell {

// What the byte of a scale stands for.
constexpr float int4_scale(std::uint8_t bits) {
  return std::bit_cast<float>((std::uint32_t{bits} << 19U) + (std::uint32_t{127 - 15} << 23U));
}

// Makes a row of int4 from codes [cols] and a scale for every 32 of them; cols is a multiple of 32.
// Returns false if a scale is not positive, has more than 5 significant bits, or is less than 2⁻¹⁵
// of the row's largest. Scales of blocks whose codes are all zero do not matter.
bool make_int4_row(const std::int8_t* codes, const float* scales, std::int64_t cols,
                   std::uint8_t* row, float* row_scale);

}  // namespace twell
#pragma GCC visibility pop
