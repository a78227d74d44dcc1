// Vectors of the pieces that a GgmlMatrix in GgmlOrder::outputs has (format/ggml_layout.h), and
// their products with rounded inputs, four inputs of 32 outputs at a time. All sums are exact.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "format/ggml_layout.h"
#include "kernels/cpu/common/ggml_vectors.h"
#include "twell/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace twell {
namespace {

// Each tier's has
//   Codes     of a quad, and the 128 bytes that they are stored as
//   Part      sums of products, half of a quad's or all; one holds those of kInputsOfPart<bits, n>
//             inputs with codes of such a size, less their offset, at most
//   Numbers   sub-scales of a group, which a part is multiplied with
//   Sums      sums of parts, of 32 bits
//   begin()   what the sums of a row begin at, so that codes less an offset were multiplied: a
//             function of the sums of its inputs 0 and 1, and 2 and 3, of each quad.
#if defined(__AVX512VNNI__)

struct GgmlQuads {
  static constexpr int kRows = 4;  // that are multiplied together
  // Measured on Zen 4, 64 rows. Here, with AVX2 and in portable code the share is where GgmlTile
  // takes as long.
  template <int>
  static constexpr double kMostSparse = 0.17;
  struct Codes {  // of 16 outputs each
    __m512i of[2];
  };
  using Part = Codes;
  using Numbers = Codes;
  using Sums = Codes;
  template <int, int>
  static constexpr int kInputsOfPart = 64;  // more than a group has

  // Codes of 8 bits become unsigned, 128 more.
  template <int kBits>
  static constexpr int kOffset = kBits == 8 ? 128 : 0;
  template <int kBits>
  static Codes load(const std::uint8_t* lower, const std::uint8_t* upper) {
    const __m512i low = _mm512_loadu_si512(lower);
    if constexpr (kBits == 8) {
      const __m512i sign = _mm512_set1_epi8(-128);
      return {
          {_mm512_xor_si512(low, sign), _mm512_xor_si512(_mm512_loadu_si512(lower + 64), sign)}};
    } else {
      const __m512i four = _mm512_set1_epi8(15);
      Codes out = {
          {_mm512_and_si512(low, four), _mm512_and_si512(_mm512_srli_epi16(low, 4), four)}};
      if constexpr (kBits == 5) {
        const __m512i fifth = _mm512_set1_epi8(16);
        for (int i = 0; i < 2; ++i) {
          std::uint64_t bits;
          std::memcpy(&bits, upper + 8 * i, sizeof bits);
          out.of[i] = _mm512_mask_add_epi8(out.of[i], bits, out.of[i], fifth);
        }
      }
      if constexpr (kBits == 6) {
        const __m512i both =
            _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper)));
        const __m512i two = _mm512_set1_epi8(48);
        // Up by four, and down by 0, 2, 4 and 6: left by 4 and 2, right by 0 and 2.
        const __m512i left = _mm512_sllv_epi16(
            both, _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1));
        const __m512i right = _mm512_srlv_epi16(
            both, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1));
        out.of[0] = _mm512_or_si512(out.of[0], _mm512_and_si512(left, two));
        out.of[1] = _mm512_or_si512(out.of[1], _mm512_and_si512(right, two));
      }
      return out;
    }
  }
  static void store(const Codes& codes, std::uint8_t* to) {
    for (int i = 0; i < 2; ++i) _mm512_store_si512(to + 64 * i, codes.of[i]);
  }
  static Codes stored(const std::uint8_t* from) {
    return {{_mm512_load_si512(from), _mm512_load_si512(from + 64)}};
  }

  static std::int32_t begin(std::int32_t first, std::int32_t second) { return first + second; }
  static Part part(std::int32_t begin) {
    return {{_mm512_set1_epi32(begin), _mm512_set1_epi32(begin)}};
  }
  template <int, int kRows>
  static void mac(Part* parts, const Codes& codes, const std::int32_t* q) {
    for (int r = 0; r < kRows; ++r) {
      const __m512i four = _mm512_set1_epi32(q[r]);
      for (int i = 0; i < 2; ++i) {
        parts[r].of[i] = _mm512_dpbusd_epi32(parts[r].of[i], codes.of[i], four);
      }
    }
  }

  static Sums zero() { return {{_mm512_setzero_si512(), _mm512_setzero_si512()}}; }
  // Of group `side` of a pair: the lower or upper words of its numbers.
  template <class T>
  static Numbers numbers(const T* pair, int side) {
    Numbers out;
    for (int i = 0; i < 2; ++i) {
      const __m512i both = words(pair + 32 * i);
      out.of[i] = side == 0 ? _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16)
                            : _mm512_srai_epi32(both, 16);
    }
    return out;
  }
  template <int>
  static void add(Sums& sums, const Part& part) {
    for (int i = 0; i < 2; ++i) sums.of[i] = _mm512_add_epi32(sums.of[i], part.of[i]);
  }
  static void add_scaled(Sums& sums, const Part& part, const Numbers& numbers) {
    for (int i = 0; i < 2; ++i) {
      sums.of[i] = _mm512_add_epi32(sums.of[i], _mm512_mullo_epi32(part.of[i], numbers.of[i]));
    }
  }
  // += q[0] · the first + q[1] · the second of a pair's sub-minima
  static void add_minima(Sums& sums, std::int32_t q, const std::uint8_t* pair) {
    const __m512i two = _mm512_set1_epi32(q);
    for (int i = 0; i < 2; ++i) {
      sums.of[i] = _mm512_add_epi32(sums.of[i], _mm512_madd_epi16(two, words(pair + 32 * i)));
    }
  }
  // y += unit · scale · sums
  static void add_to(float* y, float unit, const std::uint16_t* scales, const Sums& sums) {
    for (int i = 0; i < 2; ++i) {
      const __m512 scale =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + 16 * i)));
      const __m512 product = _mm512_mul_ps(_mm512_set1_ps(unit), scale);
      _mm512_storeu_ps(y + 16 * i, _mm512_fmadd_ps(product, _mm512_cvtepi32_ps(sums.of[i]),
                                                   _mm512_loadu_ps(y + 16 * i)));
    }
  }

 private:
  static __m512i words(const std::int8_t* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m512i words(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
};

#elif defined(__AVX2__)

// Numbers and sums are those of pairs.
struct GgmlQuads : GgmlVectors {
  static constexpr int kRows = 3;  // that are multiplied together
  // On Zen 4 as well. Codes of 8 bits take as many instructions here as words.
  template <int kBits>
  static constexpr double kMostSparse = kBits == 8 ? 1 : 0.27;
  struct Codes {  // of 8 outputs each
    __m256i of[4];
  };
  // Of words, the sums of two inputs of each quad, or of 32 bits where codes have 8.
  using Part = Codes;
  template <int kBits, int kLargest>
  static constexpr int kInputsOfPart = kBits == 8 ? 64
                                                  : static_cast<int>(std::bit_floor(32767U / 127 /
                                                                                    kLargest));

  template <int>
  static constexpr int kOffset = 0;
  template <int kBits>
  static Codes load(const std::uint8_t* lower, const std::uint8_t* upper) {
    const auto* const at = reinterpret_cast<const __m256i*>(lower);
    Codes out;
    if constexpr (kBits == 8) {
      for (int i = 0; i < 4; ++i) out.of[i] = _mm256_loadu_si256(at + i);
    } else {
      const __m256i four = _mm256_set1_epi8(15);
      for (int i = 0; i < 2; ++i) {
        const __m256i both = _mm256_loadu_si256(at + i);
        out.of[i] = _mm256_and_si256(both, four);
        out.of[2 + i] = _mm256_and_si256(_mm256_srli_epi16(both, 4), four);
      }
    }
    if constexpr (kBits == 5) {
      for (int i = 0; i < 4; ++i) {
        out.of[i] = _mm256_or_si256(out.of[i], fifth_bits(upper + 4 * i));
      }
    }
    if constexpr (kBits == 6) {
      const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper));
      const __m256i places[] = {_mm256_slli_epi16(all, 4), _mm256_slli_epi16(all, 2), all,
                                _mm256_srli_epi16(all, 2)};
      for (int i = 0; i < 4; ++i) {
        out.of[i] = _mm256_or_si256(out.of[i], _mm256_and_si256(places[i], _mm256_set1_epi8(48)));
      }
    }
    return out;
  }
  static void store(const Codes& codes, std::uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(to) + i, codes.of[i]);
    }
  }
  static Codes stored(const std::uint8_t* from) {
    const auto* const at = reinterpret_cast<const __m256i*>(from);
    return {{_mm256_load_si256(at), _mm256_load_si256(at + 1), _mm256_load_si256(at + 2),
             _mm256_load_si256(at + 3)}};
  }

  // Two words, which stay as small as the sums of codes less the offset.
  static std::int32_t begin(std::int32_t first, std::int32_t second) {
    return two_words(first, second);
  }
  static Part part(std::int32_t begin) {
    const __m256i all = _mm256_set1_epi32(begin);
    return {{all, all, all, all}};
  }
  template <int kBits, int kRows>
  static void mac(Part* parts, const Codes& codes, const std::int32_t* q) {
    __m256i fours[kRows];
    for (int r = 0; r < kRows; ++r) fours[r] = _mm256_set1_epi32(q[r]);
    for (int i = 0; i < 4; ++i) {
      const __m256i code = codes.of[i];
      for (int r = 0; r < kRows; ++r) {
        __m256i& sum = parts[r].of[i];
        if constexpr (kBits == 8) {
          // Sizes of codes are unsigned, 128 too, and their signs go to the inputs, which have no
          // −128: 2 · 128 · 127 fits a word.
          const __m256i words =
              _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(fours[r], code));
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
        } else {
          sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(code, fours[r]));
        }
      }
    }
  }

  template <int kBits>
  static void add(Sums& sums, const Part& part) {
    for (int i = 0; i < 4; ++i) {
      const __m256i one = _mm256_set1_epi16(1);
      sums.of[i] = _mm256_add_epi32(sums.of[i],
                                    kBits == 8 ? part.of[i] : _mm256_madd_epi16(part.of[i], one));
    }
  }
  static void add_scaled(Sums& sums, const Part& part, const Numbers& numbers) {
    for (int i = 0; i < 4; ++i) {
      sums.of[i] = _mm256_add_epi32(sums.of[i], _mm256_madd_epi16(part.of[i], numbers.of[i]));
    }
  }
};

#else

// Of any processor; compilers make vectors of its loops.
struct GgmlQuads : GgmlVectors {
  static constexpr int kRows = 1;
  template <int>
  static constexpr double kMostSparse = 0.3;
  struct Codes {
    std::uint8_t of[4 * kChunk];
  };
  using Part = Sums;
  template <int, int>
  static constexpr int kInputsOfPart = 64;  // more than a group has

  // Codes of 8 bits become unsigned, 128 more.
  template <int kBits>
  static constexpr int kOffset = kBits == 8 ? 128 : 0;
  template <int kBits>
  static Codes load(const std::uint8_t* lower, const std::uint8_t* upper) {
    Codes out;
    for (std::int64_t i = 0; i < 4 * kChunk; ++i) {
      unsigned code = kBits == 8 ? lower[i] ^ 128U : lower[i % 64] >> (i / 64 * 4) & 15U;
      if constexpr (kBits == 5) code |= (upper[i / 8] >> (i % 8) & 1U) << 4U;
      if constexpr (kBits == 6) code |= (upper[i % 32] >> (i / 32 * 2) & 3U) << 4U;
      out.of[i] = static_cast<std::uint8_t>(code);
    }
    return out;
  }
  static void store(const Codes& codes, std::uint8_t* to) {
    std::memcpy(to, codes.of, sizeof codes.of);
  }
  static Codes stored(const std::uint8_t* from) {
    Codes out;
    std::memcpy(out.of, from, sizeof out.of);
    return out;
  }

  static std::int32_t begin(std::int32_t first, std::int32_t second) { return first + second; }
  static Part part(std::int32_t begin) {
    Part out;
    for (auto& sum : out.of) sum = begin;
    return out;
  }
  template <int, int>
  static void mac(Part* parts, const Codes& codes, const std::int32_t* q) {
    std::int8_t four[4];
    std::memcpy(four, q, sizeof four);
    Part& part = *parts;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      std::int32_t sum = 0;
      for (std::int64_t j = 0; j < 4; ++j) sum += codes.of[4 * d + j] * four[j];
      part.of[d] += sum;
    }
  }

  template <int>
  static void add(Sums& sums, const Part& part) {
    for (std::int64_t d = 0; d < kChunk; ++d) sums.of[d] += part.of[d];
  }
  static void add_scaled(Sums& sums, const Part& part, const Numbers& numbers) {
    for (std::int64_t d = 0; d < kChunk; ++d) sums.of[d] += part.of[d] * numbers.of[d];
  }
};

#endif

}  // namespace
}  // namespace twell
