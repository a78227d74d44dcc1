// f32 vectors of the 32 outputs of a chunk, and what makes them of the codes, sub-scales and scales
// that a GgmlMatrix has (format/ggml_layout.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/common/ggml_quads.h"

namespace twell {
namespace {

// Each tier's has
//   Chunk           a number for each output
//   number<bits, offset, i>(codes)  the codes of input i of a quad, less an offset
//   input<bits, offset>(from)       those of one input in GgmlOrder::inputs, by place
//   by_output<bits>(chunk)          by output what is by place (place_of())
// Numbers are exact.
#if defined(__AVX512VNNI__)

struct GgmlFloats {
  static constexpr int kRows = 8;  // that are multiplied together
  struct Chunk {
    __m512 of[2];
  };

  static Chunk zero() { return {{_mm512_setzero_ps(), _mm512_setzero_ps()}}; }
  static Chunk load(const float* from) {
    return {{_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)}};
  }
  static void store(const Chunk& chunk, float* to) {
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(to + 16 * i, chunk.of[i]);
  }
  // sum += x · by
  static void add(Chunk& sum, float x, const Chunk& by) {
    const __m512 all = _mm512_set1_ps(x);
    for (int i = 0; i < 2; ++i) sum.of[i] = _mm512_fmadd_ps(all, by.of[i], sum.of[i]);
  }
  static void add(Chunk& sum, const Chunk& x, const Chunk& by) {
    for (int i = 0; i < 2; ++i) sum.of[i] = _mm512_fmadd_ps(x.of[i], by.of[i], sum.of[i]);
  }

  static Chunk scales(const std::uint16_t* from) {
    const auto half = [&](int i) {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i));
    };
    return {{half(0), half(1)}};
  }
  // Of the first or the second (`side`) group of a pair: sub-scales or sub-minima.
  template <class T>
  static Chunk numbers(const T* pair, int side) {
    const GgmlQuads::Numbers out = GgmlQuads::numbers(pair, side);
    return {{_mm512_cvtepi32_ps(out.of[0]), _mm512_cvtepi32_ps(out.of[1])}};
  }
  template <int kBits, int kOffset, int kInput>
  static Chunk number(const GgmlQuads::Codes& codes) {
    const auto half = [&](int i) {
      if constexpr (kBits <= 5) {
        // The instruction takes no more bits of the index than there are numbers.
        return number_of<kBits, kOffset>(_mm512_srli_epi32(codes.of[i], 8 * kInput));
      } else {
        const __m512i less =
            _mm512_sub_epi8(codes.of[i], _mm512_set1_epi8(static_cast<char>(kOffset)));
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(less, 24 - 8 * kInput), 24));
      }
    };
    return {{half(0), half(1)}};
  }
  template <int kBits, int kOffset>
  static Chunk input(const std::uint8_t* from) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if constexpr (kBits == 8) {
      const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 1);
      return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)),
               _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high))}};
    } else {
      const __m512i bytes = _mm512_cvtepu8_epi32(low);
      __m512i of[] = {bytes, _mm512_srli_epi32(bytes, 4)};
      if constexpr (kBits == 5) {
        std::uint32_t fifth;
        std::memcpy(&fifth, from + 16, sizeof fifth);
        for (int i = 0; i < 2; ++i) {
          of[i] = _mm512_and_si512(of[i], _mm512_set1_epi32(15));
          of[i] = _mm512_mask_add_epi32(of[i], static_cast<__mmask16>(fifth >> (16 * i)), of[i],
                                        _mm512_set1_epi32(16));
        }
      }
      if constexpr (kBits == 6) {
        std::int64_t upper;
        std::memcpy(&upper, from + 16, sizeof upper);
        const __m512i both = _mm512_cvtepu8_epi32(_mm_set1_epi64x(upper));
        // To bits 4 and 5: up by 4 and 2, and down by 0 and 2.
        const __m512i moved[] = {
            _mm512_sllv_epi32(both,
                              _mm512_inserti64x4(_mm512_set1_epi32(4), _mm256_set1_epi32(2), 1)),
            _mm512_srlv_epi32(both,
                              _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(2), 1))};
        for (int i = 0; i < 2; ++i) {
          of[i] = _mm512_or_si512(_mm512_and_si512(of[i], _mm512_set1_epi32(15)),
                                  _mm512_and_si512(moved[i], _mm512_set1_epi32(48)));
        }
      }
      return {{number_of<kBits, kOffset>(of[0]), number_of<kBits, kOffset>(of[1])}};
    }
  }
  template <int kBits>
  static Chunk by_output(const Chunk& chunk) {
    constexpr int kMiddle = 0b11'01'10'00;
    const auto& of = chunk.of;
    if constexpr (kBits == 8) return chunk;
    if constexpr (kBits == 4) {
      return {{_mm512_shuffle_f32x4(of[0], of[0], kMiddle),
               _mm512_shuffle_f32x4(of[1], of[1], kMiddle)}};
    }
    const __m512 low = _mm512_shuffle_f32x4(of[0], of[1], 0b01'00'01'00);
    const __m512 high = _mm512_shuffle_f32x4(of[0], of[1], 0b11'10'11'10);
    return {{_mm512_shuffle_f32x4(low, low, kMiddle), _mm512_shuffle_f32x4(high, high, kMiddle)}};
  }

 private:
  // Of codes in words of 32 bits: of 4 and 5 bits looked up.
  template <int kBits, int kOffset>
  static __m512 number_of(__m512i codes) {
    const __m512 first =
        _mm512_setr_ps(0 - kOffset, 1 - kOffset, 2 - kOffset, 3 - kOffset, 4 - kOffset, 5 - kOffset,
                       6 - kOffset, 7 - kOffset, 8 - kOffset, 9 - kOffset, 10 - kOffset,
                       11 - kOffset, 12 - kOffset, 13 - kOffset, 14 - kOffset, 15 - kOffset);
    if constexpr (kBits == 4) return _mm512_permutexvar_ps(codes, first);
    if constexpr (kBits == 5) {
      const __m512 second = _mm512_add_ps(first, _mm512_set1_ps(16));
      return _mm512_permutex2var_ps(first, codes, second);
    }
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(kOffset)));
  }
};

#elif defined(__AVX2__)

struct GgmlFloats {
  static constexpr int kRows = 3;  // that are multiplied together
  struct Chunk {
    __m256 of[4];
  };

  static Chunk zero() {
    return load_each([](int) { return _mm256_setzero_ps(); });
  }
  static Chunk load(const float* from) {
    return load_each([&](int i) { return _mm256_loadu_ps(from + 8 * i); });
  }
  static void store(const Chunk& chunk, float* to) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(to + 8 * i, chunk.of[i]);
  }
  // sum += x · by
  static void add(Chunk& sum, float x, const Chunk& by) {
    const __m256 all = _mm256_set1_ps(x);
    for (int i = 0; i < 4; ++i) sum.of[i] = _mm256_fmadd_ps(all, by.of[i], sum.of[i]);
  }
  static void add(Chunk& sum, const Chunk& x, const Chunk& by) {
    for (int i = 0; i < 4; ++i) sum.of[i] = _mm256_fmadd_ps(x.of[i], by.of[i], sum.of[i]);
  }

  static Chunk scales(const std::uint16_t* from) {
    return load_each([&](int i) {
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
    });
  }
  // Of the first or the second (`side`) group of a pair: sub-scales or sub-minima.
  template <class T>
  static Chunk numbers(const T* pair, int side) {
    return load_each([&](int i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pair) + i);
      const __m256i words =
          static_cast<T>(-1) < 0 ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
      return _mm256_cvtepi32_ps(
          _mm256_srai_epi32(side == 0 ? _mm256_slli_epi32(words, 16) : words, 16));
    });
  }
  template <int kBits, int kOffset, int kInput>
  static Chunk number(const GgmlQuads::Codes& codes) {
    return load_each([&](int i) {
      const __m256i less =
          kOffset == 0 ? codes.of[i]
                       : _mm256_sub_epi8(codes.of[i], _mm256_set1_epi8(static_cast<char>(kOffset)));
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(less, 24 - 8 * kInput), 24));
    });
  }
  template <int kBits, int kOffset>
  static Chunk input(const std::uint8_t* from) {
    if constexpr (kBits == 8) {
      return load_each([&](int i) {
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * i))));
      });
    } else {
      return of_places<kBits, kOffset>(from);
    }
  }
  template <int kBits>
  static Chunk by_output(const Chunk& chunk) {
    constexpr int kStep = kBits == 4 ? 1 : 2;  // between the vectors of a half's outputs
    const auto& of = chunk.of;
    if constexpr (kBits == 8) return chunk;
    const auto two = [&](int i) { return kBits == 4 ? 2 * i : i; };
    return {{_mm256_permute2f128_ps(of[two(0)], of[two(0) + kStep], 0x20),
             _mm256_permute2f128_ps(of[two(0)], of[two(0) + kStep], 0x31),
             _mm256_permute2f128_ps(of[two(1)], of[two(1) + kStep], 0x20),
             _mm256_permute2f128_ps(of[two(1)], of[two(1) + kStep], 0x31)}};
  }

 private:
  template <int kBits, int kOffset>
  static Chunk of_places(const std::uint8_t* from) {
    std::int64_t upper = 0;
    std::memcpy(&upper, from + 16, (kBits - 4) * 4);
    return load_each([&](int i) {
      const auto* const at = reinterpret_cast<const __m128i*>(from + i % 2 * 8);
      const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
      __m256i code =
          i < 2 ? _mm256_and_si256(bytes, _mm256_set1_epi32(15)) : _mm256_srli_epi32(bytes, 4);
      if constexpr (kBits == 5) {
        // Bit b of eight to place 4.
        const __m256i bits =
            _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(upper >> (8 * i) & 0xFF) << 4U),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        code = _mm256_or_si256(code, _mm256_and_si256(bits, _mm256_set1_epi32(16)));
      }
      if constexpr (kBits == 6) {
        const __m256i both = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(upper));
        const __m256i bits = _mm256_slli_epi32(_mm256_srli_epi32(both, 2 * i), 4);
        code = _mm256_or_si256(code, _mm256_and_si256(bits, _mm256_set1_epi32(48)));
      }
      return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(kOffset)));
    });
  }
  template <class F>
  static Chunk load_each(const F& f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
};

#else

// Of any processor; compilers make vectors of its loops.
struct GgmlFloats {
  static constexpr int kRows = 1;
  struct Chunk {
    float of[kChunk];
  };

  static Chunk zero() { return {}; }
  static Chunk load(const float* from) {
    Chunk out;
    std::memcpy(out.of, from, sizeof out.of);
    return out;
  }
  static void store(const Chunk& chunk, float* to) { std::memcpy(to, chunk.of, sizeof chunk.of); }
  // sum += x · by
  static void add(Chunk& sum, float x, const Chunk& by) {
    for (std::int64_t d = 0; d < kChunk; ++d) sum.of[d] += x * by.of[d];
  }
  static void add(Chunk& sum, const Chunk& x, const Chunk& by) {
    for (std::int64_t d = 0; d < kChunk; ++d) sum.of[d] += x.of[d] * by.of[d];
  }

  static Chunk scales(const std::uint16_t* from) {
    return each([&](std::int64_t d) { return float_of_half(from[d]); });
  }
  // Of the first or the second (`side`) group of a pair: sub-scales or sub-minima.
  template <class T>
  static Chunk numbers(const T* pair, int side) {
    return each([&](std::int64_t d) { return static_cast<float>(pair[2 * d + side]); });
  }
  template <int kBits, int kOffset, int kInput>
  static Chunk number(const GgmlQuads::Codes& codes) {
    return each(
        [&](std::int64_t d) { return static_cast<float>(codes.of[4 * d + kInput] - kOffset); });
  }
  template <int kBits, int kOffset>
  static Chunk input(const std::uint8_t* from) {
    return each([&](std::int64_t i) {
      if constexpr (kBits == 8) return static_cast<float>(static_cast<std::int8_t>(from[i]));
      int code = from[i % 16] >> (i / 16 * 4) & 15;
      if constexpr (kBits == 5) code |= (from[16 + i / 8] >> (i % 8) & 1) << 4;
      if constexpr (kBits == 6) code |= (from[16 + i % 8] >> (i / 8 * 2) & 3) << 4;
      return static_cast<float>(code - kOffset);
    });
  }
  template <int kBits>
  static Chunk by_output(const Chunk& chunk) {
    if constexpr (kBits == 8) return chunk;
    return each([&](std::int64_t d) { return chunk.of[place_of(kBits, d)]; });
  }

 private:
  template <class F>
  static Chunk each(const F& f) {
    Chunk out;
    for (std::int64_t d = 0; d < kChunk; ++d) out.of[d] = f(d);
    return out;
  }
};

#endif

}  // namespace
}  // namespace twell
