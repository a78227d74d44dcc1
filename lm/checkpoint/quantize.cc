#include "checkpoint/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace twell::io {
namespace {

constexpr int kLanes = 8;  // sums side by side, so that the compiler uses vector instructions
constexpr std::int64_t kBlock = 256;  // of a sum in f32
constexpr float kSmallestScale = 0x1p-126F;

struct Range {
  float low, high;
};
Range range_of(int bits) {
  const auto half = static_cast<float>(1 << (bits - 1));
  return {-half, half - 1};
}

// To the nearest whole number, ties to even, of less than 2^22.
float nearest(float x) {
  constexpr float kMagic = 0x1.8p23F;
  return (x + kMagic) - kMagic;
}

float code_of(float weight, float inverse, Range range) {
  return std::min(std::max(nearest(weight * inverse), range.low), range.high);
}

float rounded_to(float value, int bits) {
  const int dropped = 24 - bits;
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = (1U << (dropped - 1)) - 1 + ((word >> dropped) & 1U);
  return std::bit_cast<float>((word + half) & ~((1U << dropped) - 1));
}

// Sum of squared roundings, each times 1 or times the weight's size.
template <bool kBySize>
double squared_error(std::span<const float> weights, float scale, Range range) {
  const float inverse = 1 / scale;
  // In units of the scale, so that weights of any size neither overflow nor vanish.
  const auto error = [&](float weight) {
    const float scaled = weight * inverse;
    const float rest = scaled - code_of(weight, inverse, range);
    return kBySize ? rest * rest * std::abs(scaled) : rest * rest;
  };
  const auto count = std::ssize(weights);
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const float* block = weights.data() + begin;
    const std::int64_t size = std::min(kBlock, count - begin);
    std::array<float, kLanes> sums{};
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sums[static_cast<std::size_t>(lane)] += error(block[i + lane]);
      }
    }
    for (; i < size; ++i) sums[0] += error(block[i]);
    for (const float sum : sums) total += sum;
  }
  const double unit = scale;
  return total * unit * unit * (kBySize ? unit : 1);
}

float tried_scale(float largest, int bits, int step) {
  const auto i = static_cast<float>(step);
  const float factor = bits == 4 ? (1.15F - 0.03F * i) / 7 : (1 - 0.01F * i) / 127;
  return std::max(rounded_to(largest * factor, scale_bits(bits)), kSmallestScale);
}

RoundingError quantize_group(std::span<const float> weights, int bits, std::int8_t* codes,
                             std::uint16_t& scale) {
  const Range range = range_of(bits);
  float largest = 0;
  RoundingError out;
  for (const float weight : weights) {
    largest = std::max(largest, std::abs(weight));
    out.signal += static_cast<double>(weight) * weight;
  }
  float best = 1;  // of a group of zeros: a scale is positive
  if (largest > 0) {
    double least = HUGE_VAL;
    float before = 0;
    for (int step = 0; step < kScalesTried; ++step) {
      const float tried = tried_scale(largest, bits, step);
      if (tried == before) continue;
      const double error = bits == 4 ? squared_error<true>(weights, tried, range)
                                     : squared_error<false>(weights, tried, range);
      if (error < least) {
        least = error;
        best = tried;
      }
      before = tried;
    }
    out.noise = squared_error<false>(weights, best, range);
  }
  for (const float weight : weights) {
    *codes++ = static_cast<std::int8_t>(code_of(weight, 1 / best, range));
  }
  scale = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(best) >> 16);
  return out;
}

}  // namespace

RoundingError& RoundingError::operator+=(const RoundingError& other) {
  signal += other.signal;
  noise += other.noise;
  return *this;
}

double RoundingError::decibels() const { return 10 * std::log10(signal / noise); }

RoundingError quantize_row(std::span<const float> weights, const WeightScheme& scheme,
                           std::int8_t* codes, std::uint16_t* scales) {
  const std::size_t group =
      scheme.group > 0 ? static_cast<std::size_t>(scheme.group) : weights.size();
  RoundingError out;
  for (std::size_t begin = 0; begin < weights.size(); begin += group) {
    out += quantize_group(weights.subspan(begin, group), scheme.bits, codes + begin, *scales++);
  }
  return out;
}

}  // namespace twell::io
