// x in terms: integers of few bits (CodeTerms).
#pragma once

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/common/row_panels.h"
#include "twell/int4.h"

namespace twell {
namespace {

// The nearest integer to v, of at most 2²²: the sum with 1.5 · 2²³ less that.
constexpr float kRound = 0x1.8p23F;
inline float nearest(float v) { return (v + kRound) - kRound; }

// Below, what x is multiplied by could overflow.
constexpr float kLeastLargest = 1e-30F;

// The input that stands at place k among terms of 16 bits.
constexpr std::int64_t word_input(std::int64_t k) {
  return k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k;
}

// Of what one term counts: as small as leaves the largest input, below 2ᵉ, at most 127.
inline int one_term_exponent(float largest, int exponent) {
  return exponent - (std::ldexp(largest, 7 - exponent) < 127.5F ? 7 : 6);
}
// Whether numbers [begin, end) times `scale` are whole.
template <class Isa>
bool all_whole(const float* numbers, std::int64_t begin, std::int64_t end, float scale) {
  const auto of_one = Isa::broadcast(scale), minus_one = Isa::broadcast(-1);
  auto rest = Isa::zero();
  for (std::int64_t k = begin; k < end; k += Isa::kLanes) {
    const auto v = Isa::mul(Isa::load(numbers + k), of_one);
    const auto whole = Isa::add(Isa::add(v, Isa::broadcast(kRound)), Isa::broadcast(-kRound));
    rest = Isa::larger(rest, Isa::fma(whole, minus_one, v));
  }
  return Isa::sum(rest) == 0;
}
// Whether x is whole numbers times 2^`first`, which are then the first term.
template <class Isa, class Term>
bool split_in_one(const float* numbers, int first, Term (&digits)[kCodeBlock]) {
  constexpr std::int64_t kLook = 32;  // a block that is none shows it at once
  const float scale = std::ldexp(1.0F, -first);
  if (!all_whole<Isa>(numbers, 0, kLook, scale) ||
      !all_whole<Isa>(numbers, kLook, kCodeBlock, scale)) {
    return false;
  }
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const std::int64_t from = sizeof(Term) == 1 ? k : word_input(k);
    digits[k] = static_cast<Term>(static_cast<std::int32_t>(numbers[from] * scale));
  }
  return true;
}

// x · 2²² / 2ᵉ, rounded, in three signed digits to base 256; 2ᵉ is above every |x|.
inline void split(const float* numbers, int exponent, std::int8_t (&digits)[3][kCodeBlock]) {
  const float scale = std::ldexp(1.0F, 22 - exponent);
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const auto v = static_cast<std::int32_t>(nearest(numbers[k] * scale));
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
    const auto v = static_cast<std::int32_t>(nearest(numbers[k] * scale));
    const std::int32_t top = (v + 128) >> 8;
    digits[0][k] = static_cast<std::int8_t>(top);
    digits[1][k] = static_cast<std::int8_t>(v - top * 256);
  }
  return exponent - bits;
}
// x · 2¹⁵ / 2ᵉ: a whole part and the rest in 2¹⁵ths.
inline void split(const float* numbers, int exponent, std::int16_t (&words)[2][kCodeBlock]) {
  constexpr float kMost = 32767;
  const float scale = std::ldexp(1.0F, 15 - exponent);
  std::int16_t whole[kCodeBlock], rest[kCodeBlock];
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const float v = numbers[k] * scale;
    const float high = std::clamp(nearest(v), -kMost, kMost);
    whole[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(high));
    rest[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(nearest((v - high) * 0x1p15F)));
  }
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    words[0][k] = whole[word_input(k)];
    words[1][k] = rest[word_input(k)];
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

// A finite block in terms; x is of T.
template <class Isa, class T, class Term>
void split_block(const float* numbers, const Sizes& sizes, std::int64_t inputs, CodeTerms& to) {
  constexpr bool kBytes = sizeof(Term) == 1;
  int exponent = 0;
  (void)std::frexp(sizes.largest, &exponent);
  auto& terms = terms_of(to, Term{});
  int first = one_term_exponent(sizes.largest, exponent);  // of what the first term counts
  to.count = 1;
  if (!split_in_one<Isa>(numbers, first, terms[0])) {
    const bool few =
        !kBytes || (std::is_same_v<T, bf16> &&
                    sizes.largest * static_cast<float>(inputs) <= kFewTermsRatio * sizes.sum);
    to.count = few ? 2 : 3;
    first = exponent - (kBytes ? 6 : 15);
    if constexpr (kBytes) {
      if (few) first = split_in_two(numbers, sizes.largest, exponent, terms);
    }
    if (!kBytes || !few) split(numbers, exponent, terms);
  }
  to.unit = std::ldexp(1.0F, first);
  for (std::int32_t t = 0; t < to.count; ++t) {
    to.sums[t] = std::accumulate(terms[t], terms[t] + kCodeBlock, 0);
  }
  if constexpr (kBytes) sum_groups(to);
}

// At most kCodeBlock inputs, zeros after them.
template <class Isa, class T>
void load_block(const T* x, std::int64_t inputs, float (&numbers)[kCodeBlock]) {
  std::int64_t k = 0;
  for (; k + Isa::kLanes <= inputs; k += Isa::kLanes) Isa::store(numbers + k, Isa::load(x + k));
  for (; k < inputs; ++k) numbers[k] = static_cast<float>(x[k]);
  std::fill(numbers + k, numbers + kCodeBlock, 0.0F);
}
// Whether a block is split, or rounded: finite, and not all next to 0.
template <class T>
bool is_split(const T* x, std::int64_t inputs, float largest) {
  return all_finite<T>(x, inputs) && (largest == 0 || largest >= kLeastLargest);
}

template <class Isa, class T, class Term>
bool to_terms(const void* x_row, std::int64_t cols, CodeTerms* to) {
  const T* x = static_cast<const T*>(x_row);
  bool one = true;
  for (; cols > 0; x += kCodeBlock, cols -= kCodeBlock, ++to) {
    const std::int64_t inputs = std::min(cols, kCodeBlock);
    float numbers[kCodeBlock];
    load_block<Isa>(x, inputs, numbers);
    const Sizes sizes = sizes_of<Isa>(numbers);
    if (!is_split(x, inputs, sizes.largest)) {
      to->unit = std::numeric_limits<float>::quiet_NaN();
      std::copy_n(numbers, kCodeBlock, to->numbers);
      one = false;
      continue;
    }
    split_block<Isa, T, Term>(numbers, sizes, inputs, *to);
    one &= to->count == 1;
  }
  return one;
}

// round_inputs() of a row.
template <class Isa, class T>
void round_inputs(const void* x_row, std::int64_t cols, void* y_row) {
  const T* x = static_cast<const T*>(x_row);
  T* y = static_cast<T*>(y_row);
  for (; cols > 0; x += kCodeBlock, y += kCodeBlock, cols -= kCodeBlock) {
    const std::int64_t inputs = std::min(cols, kCodeBlock);
    float numbers[kCodeBlock];
    load_block<Isa>(x, inputs, numbers);
    const float largest = sizes_of<Isa>(numbers).largest;
    if (!is_split(x, inputs, largest)) {
      std::copy_n(x, inputs, y);
      continue;
    }
    int exponent = 0;
    (void)std::frexp(largest, &exponent);
    const int first = one_term_exponent(largest, exponent);
    const float scale = std::ldexp(1.0F, -first), unit = std::ldexp(1.0F, first);
    // 64 units of 2¹²² would be infinite.
    const float most = first == 122 ? 63.0F : 127.0F;
    for (std::int64_t k = 0; k < inputs; ++k) {
      y[k] = static_cast<T>(std::clamp(nearest(numbers[k] * scale), -most, most) * unit);
    }
  }
}

}  // namespace
}  // namespace twell
