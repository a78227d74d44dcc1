// Vectors of the chunks of 32 outputs that a GgmlMatrix has (format/ggml_layout.h), and their
// products with rounded inputs, two inputs at a time. All sums are exact.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "format/ggml_layout.h"
#include "twell/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace twell {
namespace {

// Two rounded inputs, a byte each, and the codes that they are multiplied with, of the first chunk.
struct GgmlPair {
  const std::uint8_t* first;
  const std::uint8_t* second;
  std::uint16_t q;
};

// Two words, as instructions take them that add two products.
inline std::int32_t two_words(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>(static_cast<std::uint16_t>(first) |
                                   static_cast<std::uint32_t>(second) << 16U);
}
// Σ q of two groups of 32.
inline std::int32_t sums_of_groups(const std::int8_t* q) {
  std::int32_t sums[2] = {};
  for (std::int64_t i = 0; i < 32; ++i) {
    sums[0] += q[i];
    sums[1] += q[32 + i];
  }
  return two_words(sums[0], sums[1]);
}
// The sub-scales of a pair of groups: without a sign where there are sub-minima.
template <GgmlFormat kFormat>
auto sub_scales_of(const std::uint8_t* pair) {
  using Number = std::conditional_t<traits_of(kFormat).minima, std::uint8_t, std::int8_t>;
  return reinterpret_cast<const Number*>(pair);
}

#if defined(__AVX2__)

struct GgmlVectors {
  struct Pair {  // the codes of two inputs, interleaved
    __m256i low, high;
  };
  struct Words {  // of 16 bits
    __m256i low, high;
  };
  struct Sums {  // of 32 bits, of eight outputs each
    __m256i of[4];
  };

  template <int kBits>
  static Pair load(const std::uint8_t* a, const std::uint8_t* b) {
    if constexpr (kBits == 4) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
      const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
      const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y));
      const __m256i four = _mm256_set1_epi8(15);
      return {_mm256_and_si256(both, four), _mm256_and_si256(_mm256_srli_epi16(both, 4), four)};
    } else {
      const __m256i x = places<kBits>(a), y = places<kBits>(b);
      return {_mm256_unpacklo_epi8(x, y), _mm256_unpackhi_epi8(x, y)};
    }
  }
  // 16 in the bytes whose bit is set, of 32.
  static __m256i fifth_bits(const std::uint8_t* from) {
    std::int32_t bits;
    std::memcpy(&bits, from, sizeof bits);
    // The byte with its bit in each place, and of that the bit.
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
  }
  static Words words(std::int16_t value) {
    return {_mm256_set1_epi16(value), _mm256_set1_epi16(value)};
  }
  // += such codes multiplied with the two bytes of q, which 16 bits hold.
  static Words mac(const Words& sum, const Pair& codes, std::uint16_t q) {
    const __m256i two = _mm256_set1_epi16(static_cast<std::int16_t>(q));
    return {_mm256_add_epi16(sum.low, _mm256_maddubs_epi16(codes.low, two)),
            _mm256_add_epi16(sum.high, _mm256_maddubs_epi16(codes.high, two))};
  }

  // The numbers of a group, each twice as words.
  struct Numbers {
    __m256i of[4];
  };
  // Of the first or the second (`side`) group of a pair.
  template <class T>
  static Numbers numbers(const T* pair, int side) {
    // Bytes 0 and 1, or 2 and 3, of each four, twice.
    const __m256i places =
        _mm256_add_epi8(_mm256_setr_epi64x(0x0504050401000100, 0x0D0C0D0C09080908,
                                           0x0504050401000100, 0x0D0C0D0C09080908),
                        _mm256_set1_epi8(static_cast<char>(2 * side)));
    Numbers out;
    for (int i = 0; i < 4; ++i) out.of[i] = _mm256_shuffle_epi8(widen(pair + 16 * i), places);
    return out;
  }
  // The codes of two inputs, less the offset and multiplied with numbers: words, 64 of them, in the
  // order of outputs.
  template <int kBits, int kOffset, bool kScaled>
  static void put_words(const std::uint8_t* a, const std::uint8_t* b, const Numbers& by,
                        std::uint8_t* to) {
    __m256i words[4];
    if constexpr (kBits == 8) {
      for (int i = 0; i < 2; ++i) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a) + i);
        const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b) + i);
        words[2 * i] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y));
        words[2 * i + 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y));
      }
    } else {
      const Pair codes = load<kBits>(a, b);
      const __m256i none = _mm256_setzero_si256();
      words[0] = _mm256_unpacklo_epi8(codes.low, none);
      words[1] = _mm256_unpackhi_epi8(codes.low, none);
      words[2] = _mm256_unpacklo_epi8(codes.high, none);
      words[3] = _mm256_unpackhi_epi8(codes.high, none);
    }
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOffset > 0) words[i] = _mm256_sub_epi16(words[i], _mm256_set1_epi16(kOffset));
      if constexpr (kScaled) words[i] = _mm256_mullo_epi16(words[i], by.of[i]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to) + i, words[i]);
    }
  }
  // += such words times two words of q
  static void add_words(Sums& sums, const std::uint8_t* words, std::int32_t q) {
    const __m256i two = _mm256_set1_epi32(q);
    for (int i = 0; i < 4; ++i) {
      const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(words) + i);
      sums.of[i] = add_products(sums.of[i], at, two);
    }
  }
  // The codes of four inputs, 4 bytes an output; those of 8 bits are xored with kMask.
  template <int kBits, int kMask>
  static void put_quad(const std::uint8_t* a, std::int64_t input, std::uint8_t* to) {
    if constexpr (kBits == 8) {
      const __m128i mask = _mm_set1_epi8(static_cast<char>(kMask));
      for (int i = 0; i < 2; ++i) {
        const auto at = [&](std::int64_t k) {
          const auto* const from = reinterpret_cast<const __m128i*>(a + k * input) + i;
          return _mm_xor_si128(_mm_loadu_si128(from), mask);
        };
        auto* const out = reinterpret_cast<__m128i*>(to) + 4 * i;
        const __m128i low[] = {_mm_unpacklo_epi8(at(0), at(1)), _mm_unpacklo_epi8(at(2), at(3))};
        const __m128i high[] = {_mm_unpackhi_epi8(at(0), at(1)), _mm_unpackhi_epi8(at(2), at(3))};
        _mm_store_si128(out, _mm_unpacklo_epi16(low[0], low[1]));
        _mm_store_si128(out + 1, _mm_unpackhi_epi16(low[0], low[1]));
        _mm_store_si128(out + 2, _mm_unpacklo_epi16(high[0], high[1]));
        _mm_store_si128(out + 3, _mm_unpackhi_epi16(high[0], high[1]));
      }
    } else {
      auto* const out = reinterpret_cast<__m256i*>(to);
      const Pair one = load<kBits>(a, a + input), other = load<kBits>(a + 2 * input, a + 3 * input);
      _mm256_store_si256(out, _mm256_unpacklo_epi16(one.low, other.low));
      _mm256_store_si256(out + 1, _mm256_unpackhi_epi16(one.low, other.low));
      _mm256_store_si256(out + 2, _mm256_unpacklo_epi16(one.high, other.high));
      _mm256_store_si256(out + 3, _mm256_unpackhi_epi16(one.high, other.high));
    }
  }

  static Sums zero() {
    const __m256i none = _mm256_setzero_si256();
    return {{none, none, none, none}};
  }
  static void add(Sums& sums, const Sums& others) {
    for (int i = 0; i < 4; ++i) sums.of[i] = _mm256_add_epi32(sums.of[i], others.of[i]);
  }
  // += a + b
  static void add(Sums& sums, const Words& a, const Words& b) {
    const __m256i one = _mm256_set1_epi16(1);
    add_pairs(sums, a, b, [&](int) { return one; });
  }
  // += a · the first + b · the second of a pair's numbers
  template <class T>
  static void add_scaled(Sums& sums, const Words& a, const Words& b, const T* pair) {
    add_pairs(sums, a, b, [&](int i) { return widen(pair + 16 * i); });
  }
  // += q[0] · the first + q[1] · the second
  template <class T>
  static void add_minima(Sums& sums, std::int32_t q, const T* pair) {
    const __m256i word = _mm256_set1_epi32(q);
    for (int i = 0; i < 4; ++i) {
      sums.of[i] = _mm256_add_epi32(sums.of[i], _mm256_madd_epi16(word, widen(pair + 16 * i)));
    }
  }
  // += codes of 8 bits
  static void add_codes(Sums& sums, const std::uint8_t* a, const std::uint8_t* b, std::uint16_t q) {
    const __m256i two = _mm256_cvtepi8_epi16(_mm_set1_epi16(static_cast<std::int16_t>(q)));
    for (int i = 0; i < 2; ++i) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a) + i);
      const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b) + i);
      const auto add = [&](__m256i& sum, __m128i codes) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(codes), two));
      };
      add(sums.of[2 * i], _mm_unpacklo_epi8(x, y));
      add(sums.of[2 * i + 1], _mm_unpackhi_epi8(x, y));
    }
  }
  // y += unit · scale · sums; scales are finite, binary16 or f32
  template <class T>
  static void add_to(float* y, float unit, const T* scales, const Sums& sums) {
    for (int i = 0; i < 4; ++i) {
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(unit), eight_at(scales + 8 * i));
      const __m256 sum = _mm256_cvtepi32_ps(sums.of[i]);
      _mm256_storeu_ps(y + 8 * i, _mm256_fmadd_ps(scale, sum, _mm256_loadu_ps(y + 8 * i)));
    }
  }
  static void widen_scales(const std::uint16_t* from, float* to) {
    for (int i = 0; i < kChunk; i += 8) _mm256_storeu_ps(to + i, eight_at(from + i));
  }

 private:
  // Codes of five or six bits in their places.
  template <int kBits>
  static __m256i places(const std::uint8_t* from) {
    const __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(nibbles), _mm_srli_epi16(nibbles, 4), 1);
    const __m256i low = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if constexpr (kBits == 5) {
      return _mm256_or_si256(low, fifth_bits(from + 16));
    }
    std::int64_t upper;
    std::memcpy(&upper, from + 16, sizeof upper);
    const __m256i two = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(upper), _mm256_setr_epi64x(0, 2, 4, 6)),
        _mm256_set1_epi8(3));
    return _mm256_or_si256(low, _mm256_slli_epi16(two, 4));
  }
  static __m256i add_products(__m256i sum, __m256i words, __m256i others) {
#if defined(__AVX512VNNI__)
    return _mm256_dpwssd_epi32(sum, words, others);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(words, others));
#endif
  }
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
  static __m256i widen(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static __m256i widen(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static __m256i widen(const std::int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  // Subnormal binary16 are numbers for this instruction, whatever the processor does with others.
  static __m256 eight_at(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static __m256 eight_at(const float* from) { return _mm256_loadu_ps(from); }
};

#else

// Of any processor; compilers make vectors of its loops.
struct GgmlVectors {
  struct Pair {  // the codes of two inputs, interleaved
    std::uint8_t of[2 * kChunk];
  };
  struct Words {
    std::int16_t of[kChunk];
  };
  struct Sums {
    std::int32_t of[kChunk];
  };

  template <int kBits>
  static Pair load(const std::uint8_t* a, const std::uint8_t* b) {
    Pair out;
    const std::uint8_t* const from[] = {a, b};
    for (std::int64_t side = 0; side < 2; ++side) {
      std::uint8_t places[kChunk];
      for (std::int64_t i = 0; i < kChunk; ++i) {
        unsigned code = from[side][i % 16] >> (i / 16 * 4) & 15U;
        if constexpr (kBits == 5) code |= (from[side][16 + i / 8] >> (i % 8) & 1U) << 4U;
        if constexpr (kBits == 6) code |= (from[side][16 + i % 8] >> (i / 8 * 2) & 3U) << 4U;
        places[i] = static_cast<std::uint8_t>(code);
      }
      for (std::int64_t d = 0; d < kChunk; ++d) out.of[2 * d + side] = places[place_of(kBits, d)];
    }
    return out;
  }

  static Words words(std::int16_t value) {
    Words out;
    for (auto& word : out.of) word = value;
    return out;
  }
  static Words mac(const Words& sum, const Pair& codes, std::uint16_t q) {
    const int first = signed_of(q), second = signed_of(q >> 8U);
    Words out;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      out.of[d] = static_cast<std::int16_t>(sum.of[d] + first * codes.of[2 * d] +
                                            second * codes.of[2 * d + 1]);
    }
    return out;
  }

  struct Numbers {
    std::int16_t of[kChunk];
  };
  template <class T>
  static Numbers numbers(const T* pair, int side) {
    Numbers out;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      out.of[d] = pair[2 * d + side];  // NOLINT(bugprone-signed-char-misuse): a number
    }
    return out;
  }
  template <int kBits, int kOffset, bool kScaled>
  static void put_words(const std::uint8_t* a, const std::uint8_t* b, const Numbers& by,
                        std::uint8_t* to) {
    std::int16_t words[2 * kChunk];
    if constexpr (kBits == 8) {
      for (std::int64_t d = 0; d < kChunk; ++d) {
        words[2 * d] = static_cast<std::int16_t>(signed_of(a[d]));
        words[2 * d + 1] = static_cast<std::int16_t>(signed_of(b[d]));
      }
    } else {
      const Pair codes = load<kBits>(a, b);
      for (std::int64_t d = 0; d < 2 * kChunk; ++d) {
        const int scale = kScaled ? by.of[d / 2] : 1;
        words[d] = static_cast<std::int16_t>((codes.of[d] - kOffset) * scale);
      }
    }
    std::memcpy(to, words, sizeof words);
  }
  static void add_words(Sums& sums, const std::uint8_t* words, std::int32_t q) {
    std::int16_t two[2], at[2 * kChunk];
    std::memcpy(two, &q, sizeof two);
    std::memcpy(at, words, sizeof at);
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += two[0] * at[2 * d] + two[1] * at[2 * d + 1];
    }
  }
  template <int kBits, int kMask>
  static void put_quad(const std::uint8_t* a, std::int64_t input, std::uint8_t* to) {
    for (std::int64_t k = 0; k < 4; k += 2) {
      const std::uint8_t* const at = a + k * input;
      Pair codes;
      if constexpr (kBits < 8) codes = load<kBits>(at, at + input);
      for (std::int64_t d = 0; d < 2 * kChunk; ++d) {
        if constexpr (kBits == 8) codes.of[d] = at[d % 2 * input + d / 2] ^ kMask;
        to[d / 2 * 4 + k + d % 2] = codes.of[d];
      }
    }
  }

  static Sums zero() { return {}; }
  static void add(Sums& sums, const Sums& others) {
    for (std::int64_t d = 0; d < kChunk; ++d) sums.of[d] += others.of[d];
  }
  static void add(Sums& sums, const Words& a, const Words& b) {
    for (std::int64_t d = 0; d < kChunk; ++d) sums.of[d] += a.of[d] + b.of[d];
  }
  template <class T>
  static void add_scaled(Sums& sums, const Words& a, const Words& b, const T* pair) {
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += a.of[d] * pair[2 * d] + b.of[d] * pair[2 * d + 1];
    }
  }
  template <class T>
  static void add_minima(Sums& sums, std::int32_t q, const T* pair) {
    std::int16_t of[2];
    std::memcpy(of, &q, sizeof of);
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += of[0] * pair[2 * d] + of[1] * pair[2 * d + 1];
    }
  }
  static void add_codes(Sums& sums, const std::uint8_t* a, const std::uint8_t* b, std::uint16_t q) {
    const int first = signed_of(q), second = signed_of(q >> 8U);
    for (std::int64_t d = 0; d < kChunk; ++d) {
      sums.of[d] += first * signed_of(a[d]) + second * signed_of(b[d]);
    }
  }
  template <class T>
  static void add_to(float* y, float unit, const T* scales, const Sums& sums) {
    for (std::int64_t d = 0; d < kChunk; ++d) {
      y[d] += unit * number_of(scales[d]) * static_cast<float>(sums.of[d]);
    }
  }
  static void widen_scales(const std::uint16_t* from, float* to) {
    for (std::int64_t d = 0; d < kChunk; ++d) to[d] = number_of(from[d]);
  }

 private:
  static int signed_of(unsigned byte) { return static_cast<std::int8_t>(byte & 0xFFU); }
  static float number_of(std::uint16_t half) { return float_of_half(half); }
  static float number_of(float number) { return number; }
};

#endif

}  // namespace
}  // namespace twell
