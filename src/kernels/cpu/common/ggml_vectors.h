// Vectors of the chunks of 32 outputs that a GgmlDown has (format/ggml_layout.h), and their
// products with rounded inputs, two inputs at a time. All sums are exact.
#pragma once

#include <cstdint>
#include <cstring>

#include "format/ggml_layout.h"
#include "twell/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace twell {
namespace {

// Two rounded inputs and the codes that they are multiplied with, of the first chunk.
struct GgmlPair {
  const std::uint8_t* first;
  const std::uint8_t* second;
  std::int16_t q[2];

  // As the bytes, and as the 16-bit halves of a word.
  std::int16_t bytes() const {
    return static_cast<std::int16_t>((q[0] & 0xFF) | static_cast<std::uint16_t>(q[1]) << 8U);
  }
  std::int32_t word() const {
    std::int32_t out;
    std::memcpy(&out, q, sizeof out);
    return out;
  }
};

#if defined(__AVX2__)

struct GgmlVectors {
  using Codes = __m256i;  // in their places
  struct Words {          // of 16 bits
    __m256i low, high;
  };
  struct Sums {  // of 32 bits, of eight outputs each
    __m256i of[4];
  };

  template <int kBits>
  static Codes load(const std::uint8_t* from) {
    const __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(nibbles), _mm_srli_epi16(nibbles, 4), 1);
    const __m256i low = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if constexpr (kBits == 4) return low;
    if constexpr (kBits == 5) {
      std::int32_t fifth;
      std::memcpy(&fifth, from + 16, sizeof fifth);
      // The byte with its bit in each place, and of that the bit.
      const __m256i bytes = _mm256_shuffle_epi8(
          _mm256_set1_epi32(fifth),
          _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
      const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
      return _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
    std::int64_t upper;
    std::memcpy(&upper, from + 16, sizeof upper);
    const __m256i two = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(upper), _mm256_setr_epi64x(0, 2, 4, 6)),
        _mm256_set1_epi8(3));
    return _mm256_or_si256(low, _mm256_slli_epi16(two, 4));
  }

  static Words words(std::int16_t value) {
    return {_mm256_set1_epi16(value), _mm256_set1_epi16(value)};
  }
  // += q[0] · a + q[1] · b, which 16 bits hold.
  static Words mac(const Words& sum, Codes a, Codes b, const GgmlPair& pair) {
    const __m256i q = _mm256_set1_epi16(pair.bytes());
    return {_mm256_add_epi16(sum.low, _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), q)),
            _mm256_add_epi16(sum.high, _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), q))};
  }

  static Sums zero() {
    const __m256i none = _mm256_setzero_si256();
    return {{none, none, none, none}};
  }
  // += a + b
  static void add(Sums& sums, const Words& a, const Words& b) {
    const __m256i one = _mm256_set1_epi16(1);
    add_pairs(sums, a, b, [&](int) { return one; });
  }
  // += a · the first + b · the second of a pair's numbers
  template <bool kSigned>
  static void add_scaled(Sums& sums, const Words& a, const Words& b, const std::uint8_t* pair) {
    add_pairs(sums, a, b, [&](int i) { return widen<kSigned>(pair + 16 * i); });
  }
  // += q[0] · the first + q[1] · the second
  static void add_minima(Sums& sums, std::int32_t q, const std::uint8_t* pair) {
    const __m256i word = _mm256_set1_epi32(q);
    for (int i = 0; i < 4; ++i) {
      sums.of[i] =
          _mm256_add_epi32(sums.of[i], _mm256_madd_epi16(word, widen<false>(pair + 16 * i)));
    }
  }
  // += q[0] · a + q[1] · b, codes of 8 bits
  static void add_codes(Sums& sums, const std::uint8_t* a, const std::uint8_t* b,
                        const GgmlPair& pair) {
    const __m256i q = _mm256_set1_epi32(pair.word());
    for (int i = 0; i < 2; ++i) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a) + i);
      const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b) + i);
      const auto add = [&](__m256i& sum, __m128i codes) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(codes), q));
      };
      add(sums.of[2 * i], _mm_unpacklo_epi8(x, y));
      add(sums.of[2 * i + 1], _mm_unpackhi_epi8(x, y));
    }
  }
  // y += unit · scale · sums
  static void add_to(float* y, float unit, const std::uint8_t* scales, const Sums& sums) {
    for (int i = 0; i < 4; ++i) {
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(unit), scales_of(scales + 16 * i));
      const __m256 sum = _mm256_cvtepi32_ps(sums.of[i]);
      _mm256_storeu_ps(y + 8 * i, _mm256_fmadd_ps(scale, sum, _mm256_loadu_ps(y + 8 * i)));
    }
  }

 private:
  template <class Numbers>
  static void add_pairs(Sums& sums, const Words& a, const Words& b, const Numbers& numbers) {
    const auto add = [&](int i, __m256i words) {
      sums.of[i] = _mm256_add_epi32(sums.of[i], _mm256_madd_epi16(words, numbers(i)));
    };
    add(0, _mm256_unpacklo_epi16(a.low, b.low));
    add(1, _mm256_unpackhi_epi16(a.low, b.low));
    add(2, _mm256_unpacklo_epi16(a.high, b.high));
    add(3, _mm256_unpackhi_epi16(a.high, b.high));
  }
  template <bool kSigned>
  static __m256i widen(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return kSigned ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
  }
  // Eight finite binary16, as float_of_half() has them.
  static __m256 scales_of(const std::uint8_t* from) {
    const __m256i half =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi32(0x7FFF));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(half, _mm256_set1_epi32(0x8000)), 16);
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(magnitude, 13), _mm256_set1_epi32(112 << 23));
    const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-24F));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), magnitude);
    const __m256 number =
        _mm256_blendv_ps(_mm256_castsi256_ps(normal), subnormal, _mm256_castsi256_ps(small));
    return _mm256_or_ps(number, _mm256_castsi256_ps(sign));
  }
};

#else

// Of any processor; compilers make vectors of its loops.
struct GgmlVectors {
  struct Codes {  // in the order of outputs
    std::uint8_t of[kChunk];
  };
  struct Words {
    std::int16_t of[kChunk];
  };
  struct Sums {
    std::int32_t of[kChunk];
  };

  template <int kBits>
  static Codes load(const std::uint8_t* from) {
    std::uint8_t places[kChunk];
    for (std::int64_t i = 0; i < kChunk; ++i) {
      unsigned code = from[i % 16] >> (i / 16 * 4) & 15U;
      if constexpr (kBits == 5) code |= (from[16 + i / 8] >> (i % 8) & 1U) << 4U;
      if constexpr (kBits == 6) code |= (from[16 + i % 8] >> (i / 8 * 2) & 3U) << 4U;
      places[i] = static_cast<std::uint8_t>(code);
    }
    Codes out;
    for (std::int64_t d = 0; d < kChunk; ++d) out.of[d] = places[place_of(d)];
    return out;
  }

  static Words words(std::int16_t value) {
    Words out;
    for (auto& word : out.of) word = value;
    return out;
  }
  static Words mac(const Words& sum, const Codes& a, const Codes& b, const GgmlPair& pair) {
    Words out;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      out.of[d] = static_cast<std::int16_t>(sum.of[d] + pair.q[0] * a.of[d] + pair.q[1] * b.of[d]);
    }
    return out;
  }

  static Sums zero() { return {}; }
  static void add(Sums& sums, const Words& a, const Words& b) {
    for (std::int64_t d = 0; d < kChunk; ++d) sums.of[d] += a.of[d] + b.of[d];
  }
  template <bool kSigned>
  static void add_scaled(Sums& sums, const Words& a, const Words& b, const std::uint8_t* pair) {
    const auto number = [&](std::int64_t i) {
      return kSigned ? static_cast<int>(static_cast<std::int8_t>(pair[i])) : pair[i];
    };
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += a.of[d] * number(2 * d) + b.of[d] * number(2 * d + 1);
    }
  }
  static void add_minima(Sums& sums, std::int32_t q, const std::uint8_t* pair) {
    std::int16_t of[2];
    std::memcpy(of, &q, sizeof of);
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += of[0] * pair[2 * d] + of[1] * pair[2 * d + 1];
    }
  }
  static void add_codes(Sums& sums, const std::uint8_t* a, const std::uint8_t* b,
                        const GgmlPair& pair) {
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] +=
          pair.q[0] * static_cast<std::int8_t>(a[d]) + pair.q[1] * static_cast<std::int8_t>(b[d]);
    }
  }
  static void add_to(float* y, float unit, const std::uint8_t* scales, const Sums& sums) {
    for (std::int64_t d = 0; d < kChunk; ++d) {
      std::uint16_t half;
      std::memcpy(&half, scales + 2 * d, sizeof half);
      y[d] += unit * float_of_half(half) * static_cast<float>(sums.of[d]);
    }
  }
};

#endif

}  // namespace
}  // namespace twell
