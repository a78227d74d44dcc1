// AVX2 and FMA: eight floats; bf16 widened by shifting.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "twell/dtype.h"

namespace twell::avx2 {
namespace {  // every tier's code stays inside its own objects

struct Isa {
  using V = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  // f32: 6 rows × 2 vectors are 12 accumulators, which hide a multiplication's latency; 2 vectors
  // of a panel and a broadcast take 3 registers more. Words of bf16 need one for their mask.
  template <class T>
  static constexpr int kGemmRows = sizeof(T) == 4 ? 6 : 4;
  static constexpr int kGemmPanels = 1;
  static constexpr std::int64_t kGemmDepth = 4096;  // bytes of a neuron
  static constexpr bool kInputByInput = true;
  // More rows of bf16 than these multiply a panel that was widened to f32 first: with 64 rows 90
  // GFLOP/s where words, widened as they are read, take 80 (one core of a Zen 3).
  static constexpr bool kWidensBf16 = true;
  static constexpr std::int64_t kBf16Rows = 32;

  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load(const bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static V load(const std::int8_t* p) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static void store(bf16* p, V v) {
    // Round to nearest even in integers; a NaN keeps its upper half, made quiet.
    const __m256i word = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  // b where either is NaN.
  static V max_of(V a, V b) { return _mm256_max_ps(a, b); }
  // v · 2ⁿ, n the low bits of `shifted`; both normal.
  static V times_power(V v, V shifted) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), n));
  }
  // v where g is not 0 (a NaN is not), else 0.
  static V where_nonzero(V g, V v) {
    return _mm256_and_ps(_mm256_cmp_ps(g, zero(), _CMP_NEQ_UQ), v);
  }
  static V zero() { return _mm256_setzero_ps(); }
  static V broadcast(float f) { return _mm256_set1_ps(f); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(V v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  // Lane i: the sum of rows[i].
  static V sums(const V (&rows)[8]) {
    V four[2];  // in each half one sum of each of four rows
    for (int i = 0; i < 2; ++i) {
      const V* r = rows + 4 * i;
      four[i] = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
    }
    return add(_mm256_permute2f128_ps(four[0], four[1], 0x20),
               _mm256_permute2f128_ps(four[0], four[1], 0x31));
  }
  [[gnu::always_inline]] static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void prefetch_l2(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }

  // x is widened to f32 once per block: a broadcast load then costs no arithmetic port.
  template <class T>
  using X = std::conditional_t<sizeof(T) == 1, std::uint8_t, float>;
  // Input i of a panel's, of which those of bf16 are two to a word.
  static V load_input(const bf16* p, std::int64_t i) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(words, 16)
                                      : _mm256_and_si256(words, _mm256_set1_epi32(-65536)));
  }
  static V load_input(const float* p, std::int64_t /*i*/) { return load(p); }

  // kLanes words of codes, one of each neuron.
  static I load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static I flip(I words, std::uint32_t bits) {
    return _mm256_xor_si256(words, _mm256_set1_epi32(static_cast<int>(bits)));
  }
  // The codes of Bits bits that begin at bit At of the words.
  template <int Bits, int At>
  static V code(I words) {
    const I on_top = _mm256_slli_epi32(words, 32 - Bits - At);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(on_top, 32 - Bits));
  }
  // Words of two bf16, from numbers that are bf16 already: the upper halves of floats.
  static I pairs(V low, V high) {
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
                           _mm256_castps_si256(high));
  }

  // Codes of a step as 16-bit integers: inputs 0 and 2 of each neuron, 1 and 3.
  using Term = std::int16_t;
  struct Words {
    __m256i even, odd;
  };
  static constexpr int kTermsRows = 2;
  static constexpr int kOneTermRows = 4;
  static constexpr bool kOneTermAlways = true;
  static constexpr int kTermsPanels = 1;
  static constexpr std::int64_t kTermsUpTo = 8;
  static I terms_begin(std::int32_t /*sum*/) { return _mm256_setzero_si256(); }
  static Words load_terms_codes(const std::int8_t* p) {
    const __m256i w = load_panel(p);
    return {_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)};
  }
  static I mac(I acc, const Words& w, const std::int16_t* x) {
    int even, odd;
    std::memcpy(&even, x, sizeof even);
    std::memcpy(&odd, x + 2, sizeof odd);
    const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(w.even, _mm256_set1_epi32(even)),
                                          _mm256_madd_epi16(w.odd, _mm256_set1_epi32(odd)));
    return _mm256_add_epi32(acc, sums);
  }

  // int4 in panels. Eight products of a code and a term of 8 bits fit 16 bits.
  static constexpr int kInt4Rows = 1;
  static constexpr int kInt4OneTermRows = 2;
  static constexpr int kInt4Panels = 1;
  static constexpr std::int64_t kInt4TermsUpTo = 8;
  using NibbleSums = I;
  struct Nibbles {
    __m256i low, high;
  };
  static Nibbles load_nibbles(const std::uint8_t* p) {
    const __m256i w = load_words(p);
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(w, mask), _mm256_and_si256(_mm256_srli_epi16(w, 4), mask)};
  }
  static NibbleSums mac_nibbles(NibbleSums acc, __m256i codes, const std::int8_t* x) {
    int four;
    std::memcpy(&four, x, sizeof four);
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four)));
  }
  static I integers(NibbleSums sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  // high · 2⁸ + low
  static I next_digit(I high, I low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 8), low); }
  static I plus(I sum, std::int32_t i) { return _mm256_add_epi32(sum, _mm256_set1_epi32(i)); }
  // int4_scale() of kLanes bytes.
  static V group_scales(const std::uint8_t* p) {
    const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const I words = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bits), 19);
    return _mm256_castsi256_ps(_mm256_add_epi32(words, _mm256_set1_epi32((127 - 15) << 23)));
  }
  // The codes in both halves of kLanes bytes of a row.
  struct Halves {
    V low, high;
  };
  static Halves load_halves(const std::uint8_t* p) {
    const I bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const I low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
    const V eight = broadcast(8);
    return {_mm256_sub_ps(_mm256_cvtepi32_ps(low), eight),
            _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)), eight)};
  }

  static __m256i load_panel(const std::int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static I mac(I acc, __m256i w, const std::uint8_t* x) {
    int four;
    std::memcpy(&four, x, sizeof four);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(four), w);
    const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return _mm256_add_epi32(acc, sums);
  }
  // max(a, |v|); a where v is NaN.
  static V larger(V a, V v) { return _mm256_max_ps(_mm256_andnot_ps(broadcast(-0.0F), v), a); }
  // The low byte of each lane's bits, plus `zero`.
  static void store_low_bytes(std::uint8_t* p, V v, std::int32_t zero) {
    const __m256i words = _mm256_add_epi32(_mm256_castps_si256(v), _mm256_set1_epi32(zero));
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xff));
    const __m256i pairs = _mm256_packus_epi32(low, low);  // four words of each half, twice
    const __m256i bytes = _mm256_packus_epi16(pairs, pairs);
    const std::int32_t halves[] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
    std::memcpy(p, halves, sizeof halves);
  }
  // What x = 0 is as an unsigned number: 7 bits, for vpmaddubsw adds two products in 16 bits.
  static constexpr std::int32_t kScreenZero = 64;
  // What sums of products with unsigned x start from, from −Σ w.
  static I screen_begin(const std::int8_t* sums) { return _mm256_slli_epi32(load_panel(sums), 6); }
  static V to_float(I integers) {
    // g++ 12 would keep a sum of a loop twice, once for each of its two types of the same bits.
    asm("" : "+x"(integers));
    return _mm256_cvtepi32_ps(integers);
  }

  template <class T>
  static constexpr int kDot = kLanes;
  template <class W, class T>
  static V dot(V acc, const W* w, const T* x) {
    return fma(load(w), load(x), acc);
  }

  // Bit i: !(p[i] <= threshold), so NaN is kept. 16 floats.
  static std::uint32_t kept16(const float* p, float threshold) {
    const V t = broadcast(threshold);
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(load(p), t, _CMP_NLE_UQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(load(p + 8), t, _CMP_NLE_UQ));
    return static_cast<std::uint32_t>(low | high << 8);
  }
};

}  // namespace
}  // namespace twell::avx2
