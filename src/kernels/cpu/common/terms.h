// x in terms: integers of few bits (CodeTerms).
#pragma once

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/common/row_panels.h"
#include "twell/int4.h"

namespace twell {
namespace {

// x · 2²² / 2ᵉ, rounded, in three signed digits to base 256; 2ᵉ is above every |x|.
inline void split(const float* numbers, int exponent, std::int8_t (&digits)[3][kCodeBlock]) {
  const float scale = std::ldexp(1.0F, 22 - exponent);
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    // At most 2²², so the nearest integer is the sum with 1.5 · 2²³ less that.
    const auto v = static_cast<std::int32_t>((numbers[k] * scale + 0x1.8p23F) - 0x1.8p23F);
    const std::int32_t upper = (v + 128) >> 8;
    const std::int32_t top = (upper + 128) >> 8;
    digits[0][k] = static_cast<std::int8_t>(top);
    digits[1][k] = static_cast<std::int8_t>(upper - top * 256);
    digits[2][k] = static_cast<std::int8_t>(v - upper * 256);
  }
}
// In two digits: x · 2¹⁵ / 2ᵉ, or half of that where its first digit could be 128. Returns the
// exponent of what the first one counts.
inline int split_in_two(const float* numbers, float largest, int exponent,
                        std::int8_t (&digits)[3][kCodeBlock]) {
  const int bits = std::ldexp(largest, 15 - exponent) < 32639 ? 7 : 6;
  const float scale = std::ldexp(1.0F, 8 + bits - exponent);
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const auto v = static_cast<std::int32_t>((numbers[k] * scale + 0x1.8p23F) - 0x1.8p23F);
    const std::int32_t top = (v + 128) >> 8;
    digits[0][k] = static_cast<std::int8_t>(top);
    digits[1][k] = static_cast<std::int8_t>(v - top * 256);
  }
  return exponent - bits;
}
// x · 2¹⁵ / 2ᵉ: a whole part and the rest in 2¹⁵ths.
inline void split(const float* numbers, int exponent, std::int16_t (&words)[2][kCodeBlock]) {
  constexpr float kRound = 0x1.8p23F, kMost = 32767;
  const float scale = std::ldexp(1.0F, 15 - exponent);
  std::int16_t whole[kCodeBlock], rest[kCodeBlock];
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const float v = numbers[k] * scale;
    const float nearest = (v + kRound) - kRound;
    const float high = nearest > kMost ? kMost : nearest < -kMost ? -kMost : nearest;
    whole[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(high));
    rest[k] = static_cast<std::int16_t>(
        static_cast<std::int32_t>(((v - high) * 0x1p15F + kRound) - kRound));
  }
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const std::int64_t from = k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k;
    words[0][k] = whole[from];
    words[1][k] = rest[from];
  }
}

inline auto& terms_of(CodeTerms& x, std::int8_t) { return x.bytes; }
inline auto& terms_of(CodeTerms& x, std::int16_t) { return x.words; }
inline const auto& terms_of(const CodeTerms& x, std::int8_t) { return x.bytes; }
inline const auto& terms_of(const CodeTerms& x, std::int16_t) { return x.words; }

// Of terms of 8 bits.
inline void sum_groups(CodeTerms& x) {
  for (std::int64_t group = 0; group < kCodeBlock / kInt4Group; ++group) {
    std::int32_t sum = 0;
    for (std::int32_t t = 0; t < x.count; ++t) {
      const std::int8_t* const term = x.bytes[t] + group * kInt4Group;
      sum = sum * 256 + std::accumulate(term, term + kInt4Group, 0);
    }
    x.groups[group] = -8 * sum;
  }
}

// Of a block of inputs.
struct Sizes {
  float largest = 0, sum = 0;  // of |x|
};
template <class Isa>
Sizes sizes_of(const float (&numbers)[kCodeBlock]) {
  auto largest = Isa::zero(), sum = Isa::zero();
  for (std::int64_t k = 0; k < kCodeBlock; k += Isa::kLanes) {
    const auto x = Isa::load(numbers + k);
    largest = Isa::larger(largest, x);
    sum = Isa::add(sum, Isa::larger(Isa::zero(), x));
  }
  float lanes[Isa::kLanes];
  Isa::store(lanes, largest);
  return {*std::max_element(lanes, lanes + Isa::kLanes), Isa::sum(sum)};
}

template <class Isa, class T, class Term>
void to_terms(const void* x_row, std::int64_t cols, CodeTerms* to) {
  constexpr bool kBytes = sizeof(Term) == 1;
  constexpr int kBits = kBytes ? 6 : 15;  // of the first term
  const T* x = static_cast<const T*>(x_row);
  for (; cols > 0; x += kCodeBlock, cols -= kCodeBlock, ++to) {
    const std::int64_t inputs = std::min(cols, kCodeBlock);
    float numbers[kCodeBlock] = {};
    std::int64_t k = 0;
    for (; k + Isa::kLanes <= inputs; k += Isa::kLanes) Isa::store(numbers + k, Isa::load(x + k));
    for (; k < inputs; ++k) numbers[k] = static_cast<float>(x[k]);
    const Sizes sizes = sizes_of<Isa>(numbers);
    // Below, what x is multiplied by could overflow.
    constexpr float kLeast = 1e-30F;
    if (!all_finite<T>(x, inputs) || (sizes.largest > 0 && sizes.largest < kLeast)) {
      to->unit = std::numeric_limits<float>::quiet_NaN();
      std::copy_n(numbers, kCodeBlock, to->numbers);
      continue;
    }
    int exponent = 0;
    (void)std::frexp(sizes.largest, &exponent);
    int first = exponent - kBits;  // of what the first term counts
    to->count = 2;
    auto& terms = terms_of(*to, Term{});
    if constexpr (kBytes) {
      const bool few = std::is_same_v<T, bf16> &&
                       sizes.largest * static_cast<float>(inputs) <= kFewTermsRatio * sizes.sum;
      to->count = few ? 2 : 3;
      if (few) {
        first = split_in_two(numbers, sizes.largest, exponent, terms);
      } else {
        split(numbers, exponent, terms);
      }
    } else {
      split(numbers, exponent, terms);
    }
    to->unit = std::ldexp(1.0F, first);
    for (std::int32_t t = 0; t < to->count; ++t) {
      to->sums[t] = std::accumulate(terms[t], terms[t] + kCodeBlock, 0);
    }
    if constexpr (kBytes) sum_groups(*to);
  }
}

}  // namespace
}  // namespace twell
