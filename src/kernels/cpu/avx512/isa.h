// AVX-512 with BF16: sixteen floats; vdpbf16ps for products of bf16.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "twell/dtype.h"

namespace twell::avx512 {
namespace {  // every tier's code stays inside its own objects

struct Isa {
  using V = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  // 6 rows × 4 panels: 24 accumulators, 4 panel vectors, the rest for broadcasts.
  template <class T>
  static constexpr int kGemmRows = 6;
  static constexpr int kGemmPanels = 4;
  static constexpr std::int64_t kGemmDepth = 512;  // bytes of a neuron
  static constexpr bool kInputByInput = false;
  static constexpr bool kWidensBf16 = false;

  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static V load(const std::int8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static void store(bf16* p, V v) {
    // vcvtneps2bf16 would flush denormals to zero: round to nearest even in integers instead.
    const __m512i word = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i bits = _mm512_mask_or_epi32(rounded, nan, word, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  // b where either is NaN.
  static V max_of(V a, V b) { return _mm512_max_ps(a, b); }
  // v · 2ⁿ, n the low bits of `shifted`; both normal.
  static V times_power(V v, V shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), n));
  }
  // v where g is not 0 (a NaN is not), else 0.
  static V where_nonzero(V g, V v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(g, zero(), _CMP_NEQ_UQ), v);
  }
  static V zero() { return _mm512_setzero_ps(); }
  static V broadcast(float f) { return _mm512_set1_ps(f); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(V v) { return _mm512_reduce_add_ps(v); }
  // Lane i: the sum of rows[i].
  static V sums(const V (&rows)[16]) {
    const auto quarters = [](V a, V b) {  // of both in turns: 0 + 1, 2 + 3
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    V four[4];  // in each quarter one sum of each of four rows
    for (int i = 0; i < 4; ++i) {
      const V* r = rows + 4 * i;
      const V a = add(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));
      const V b = add(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));
      const __m512d x = _mm512_castps_pd(a);
      const __m512d y = _mm512_castps_pd(b);
      four[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    return quarters(quarters(four[0], four[1]), quarters(four[2], four[3]));
  }
  [[gnu::always_inline]] static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void prefetch_l2(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }

  // 16 words of 16 rows, from word `at` on, turned around.
  static void transpose_words(const void* const* rows, std::int64_t at, std::uint32_t* out) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; ++i) {
      r[i] = _mm512_loadu_si512(static_cast<const char*>(rows[i]) + at * 4);
    }
    for (int i = 0; i < 8; ++i) {  // pairs of rows
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {  // four rows: column c of every 128-bit lane in r[4 i + c]
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int c = 0; c < 4; ++c) {  // lanes of the four quarters to one vector
      const __m512i low0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
      const __m512i high0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
      const __m512i low1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
      const __m512i high1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
      _mm512_storeu_si512(out + 16 * c, _mm512_shuffle_i32x4(low0, low1, 0x88));
      _mm512_storeu_si512(out + 16 * (c + 4), _mm512_shuffle_i32x4(high0, high1, 0x88));
      _mm512_storeu_si512(out + 16 * (c + 8), _mm512_shuffle_i32x4(low0, low1, 0xdd));
      _mm512_storeu_si512(out + 16 * (c + 12), _mm512_shuffle_i32x4(high0, high1, 0xdd));
    }
  }

  // vdpbf16ps takes x as it is; vpdpbusd takes one of its operands unsigned.
  template <class T>
  using X = std::conditional_t<sizeof(T) == 1, std::uint8_t, T>;
  static __m512bh load_pairs(const bf16* p) {
    return std::bit_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  static __m512bh load_panel(const bf16* p) { return load_pairs(p); }
  static V load_panel(const float* p) { return load(p); }
  static V mac(V acc, __m512bh w, const bf16* x) {
    int pair;
    std::memcpy(&pair, x, sizeof pair);
    return _mm512_dpbf16_ps(acc, w, std::bit_cast<__m512bh>(_mm512_set1_epi32(pair)));
  }
  static V mac(V acc, V w, const float* x) { return fma(w, broadcast(*x), acc); }

  // kLanes words of codes, one of each neuron.
  static I load_words(const void* p) { return _mm512_loadu_si512(p); }
  static I flip(I words, std::uint32_t bits) {
    return _mm512_xor_si512(words, _mm512_set1_epi32(static_cast<int>(bits)));
  }
  // The codes of Bits bits that begin at bit At of the words.
  template <int Bits, int At>
  static V code(I words) {
    const I on_top = _mm512_slli_epi32(words, 32 - Bits - At);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(on_top, 32 - Bits));
  }
  // Words of two bf16, from numbers that are bf16 already: the upper halves of floats.
  static I pairs(V low, V high) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                           _mm512_castps_si512(high));
  }

  // vpdpbusd takes one of its operands unsigned: codes plus 128, whose products with x too many are
  // what sums start from. 24 sums of 2 rows × 4 panels in three terms.
  using Term = std::int8_t;
  static constexpr int kTermsRows = 2;
  static constexpr int kOneTermRows = 6;
  static constexpr bool kOneTermAlways = true;
  static constexpr int kTermsPanels = 4;
  static constexpr std::int64_t kTermsUpTo = 16;
  struct Unsigned {
    __m512i codes;
  };
  static I terms_begin(std::int32_t sum) { return _mm512_set1_epi32(-128 * sum); }
  static Unsigned load_terms_codes(const std::int8_t* p) {
    return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
  }
  static I mac(I acc, const Unsigned& w, const std::int8_t* x) {
    int four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(acc, w.codes, _mm512_set1_epi32(four));
  }

  // int4 in panels: 12 sums of 2 rows × 2 panels in three terms.
  static constexpr int kInt4Rows = 2;
  static constexpr int kInt4OneTermRows = 4;
  static constexpr int kInt4Panels = 2;
  static constexpr std::int64_t kInt4TermsUpTo = 16;
  using NibbleSums = I;
  struct Nibbles {
    __m512i low, high;
  };
  static Nibbles load_nibbles(const std::uint8_t* p) {
    const __m512i w = load_words(p);
    const __m512i mask = _mm512_set1_epi8(15);
    return {_mm512_and_si512(w, mask), _mm512_and_si512(_mm512_srli_epi16(w, 4), mask)};
  }
  static NibbleSums mac_nibbles(NibbleSums acc, __m512i codes, const std::int8_t* x) {
    int four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(four));
  }
  static I integers(NibbleSums sums) { return sums; }
  // high · 2⁸ + low
  static I next_digit(I high, I low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
  static I plus(I sum, std::int32_t i) { return _mm512_add_epi32(sum, _mm512_set1_epi32(i)); }
  // int4_scale() of kLanes bytes.
  static V group_scales(const std::uint8_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const I words = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bits), 19);
    return _mm512_castsi512_ps(_mm512_add_epi32(words, _mm512_set1_epi32((127 - 15) << 23)));
  }
  // The codes in both halves of kLanes bytes of a row.
  struct Halves {
    V low, high;
  };
  static Halves load_halves(const std::uint8_t* p) {
    const I bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
    const V eight = broadcast(8);
    return {_mm512_sub_ps(_mm512_cvtepi32_ps(low), eight),
            _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4)), eight)};
  }

  static __m512i load_panel(const std::int8_t* p) { return _mm512_loadu_si512(p); }
  static I mac(I acc, __m512i w, const std::uint8_t* x) {
    int four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(acc, _mm512_set1_epi32(four), w);
  }
  // max(a, |v|); a where v is NaN.
  static V larger(V a, V v) { return _mm512_max_ps(_mm512_abs_ps(v), a); }
  // The low byte of each lane's bits, plus `zero`.
  static void store_low_bytes(std::uint8_t* p, V v, std::int32_t zero) {
    const __m512i words = _mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(zero));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(words));
  }
  static constexpr std::int32_t kScreenZero = 128;  // what x = 0 is as an unsigned number
  // What sums of products with unsigned x start from, from −Σ w.
  static I screen_begin(const std::int8_t* sums) {
    return _mm512_slli_epi32(_mm512_loadu_si512(sums), 7);
  }
  static V to_float(I integers) {
    // g++ 12 would keep a sum of a loop twice, once for each of its two types of the same bits.
    asm("" : "+v"(integers));
    return _mm512_cvtepi32_ps(integers);
  }

  template <class T>
  static constexpr int kDot = 64 / sizeof(T);
  static V dot(V acc, const bf16* w, const bf16* x) {
    return _mm512_dpbf16_ps(acc, load_pairs(w), load_pairs(x));
  }
  static V dot(V acc, const float* w, const float* x) { return fma(load(w), load(x), acc); }
  template <class T>
  static V dot(V acc, const std::int8_t* w, const T* x) {
    return fma(load(w), load(x), acc);
  }

  // Bit i: !(p[i] <= threshold), so NaN is kept. 16 floats.
  static std::uint32_t kept16(const float* p, float threshold) {
    return _mm512_cmp_ps_mask(load(p), broadcast(threshold), _CMP_NLE_UQ);
  }
};

}  // namespace
}  // namespace twell::avx512
