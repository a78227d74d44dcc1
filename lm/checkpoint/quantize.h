// Rounding of weights to integer codes and scales: to the nearest code, with the best scale of
// fifteen. For 8 bits that is the one of least squared error. For 4 bits each squared error counts
// by the size of its weight: the plain sum cuts the largest weights off, which costs more quality
// than the finer steps of all others bring (docs/quantised.md, "What is written").
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/quantization_config.h"

namespace twell::io {

// Of a group: largest |weight| / 7 times 1.15, 1.12, … 0.73 (4 bits), / 127 times 1, 0.99, … 0.86
// (8 bits). A scale below 1 cuts the largest weights off, and is finer for all others.
inline constexpr int kScalesTried = 15;

// Bits of a scale that count. Code and scale of 4 bits fit into the 8 of bf16 together, so that
// their product is exact there; scales of 8 bits are bf16 as they are.
constexpr int scale_bits(int bits) { return bits == 4 ? 5 : 8; }

struct RoundingError {
  double signal = 0, noise = 0;  // Σ w², Σ (w - code · scale)²

  RoundingError& operator+=(const RoundingError& other);
  double decibels() const;  // 10 log10(signal / noise); infinite where nothing was lost
};

// A row of finite weights, a multiple of scheme.group of them. `codes` has as many, `scales` (bits
// of bf16; positive) one for each group. Depends on nothing else: the same on every number of
// threads.
RoundingError quantize_row(std::span<const float> weights, const WeightScheme& scheme,
                           std::int8_t* codes, std::uint16_t* scales);

}  // namespace twell::io
