// Compiler vectors of four floats: any target, no intrinsics.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "twell/dtype.h"
#include "twell/int4.h"

namespace twell::portable {
namespace {  // every tier's code stays inside its own objects

struct Isa {
  using V = float __attribute__((vector_size(16)));
  using I = std::int32_t __attribute__((vector_size(16)));
  using U = std::uint32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  template <class T>
  static constexpr int kGemmRows = 2;
  static constexpr int kGemmPanels = 1;
  static constexpr std::int64_t kGemmDepth = 512;  // bytes of a neuron
  static constexpr bool kInputByInput = false;
  static constexpr bool kWidensBf16 = false;

  static V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static V load(const bf16* p) { return V{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }
  static V load(const std::int8_t* p) {
    return V{float(p[0]), float(p[1]), float(p[2]), float(p[3])};
  }
  static void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
  static void store(bf16* p, V v) {
    for (int i = 0; i < kLanes; ++i) p[i] = bf16(v[i]);
  }
  static V add(V a, V b) { return a + b; }
  static V mul(V a, V b) { return a * b; }
  // b where either is NaN.
  static V max_of(V a, V b) {
    for (int i = 0; i < kLanes; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
  }
  // v · 2ⁿ, n the low bits of `shifted`; both normal.
  static V times_power(V v, V shifted) {
    return std::bit_cast<V>(std::bit_cast<U>(v) + (std::bit_cast<U>(shifted) << 23));
  }
  // v where g is not 0 (a NaN is not), else 0.
  static V where_nonzero(V g, V v) {
    for (int i = 0; i < kLanes; ++i) v[i] = g[i] == 0.0F ? 0.0F : v[i];
    return v;
  }
  static V zero() { return V{}; }
  static V broadcast(float f) { return V{f, f, f, f}; }
  static V fma(V a, V b, V c) { return a * b + c; }
  static float sum(V v) { return (v[0] + v[1]) + (v[2] + v[3]); }
  // Lane i: the sum of rows[i].
  static V sums(const V (&rows)[4]) {
    return V{sum(rows[0]), sum(rows[1]), sum(rows[2]), sum(rows[3])};
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { __builtin_prefetch(p); }
  [[gnu::always_inline]] static void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

  // GEMM steps: kLanes neurons × step inputs of a packed panel, times the same inputs of one row.
  template <class T>
  using X = std::conditional_t<sizeof(T) == 1, std::uint8_t, float>;
  struct Pair {
    V even, odd;
  };
  static Pair load_panel(const bf16* p) {
    U words;
    std::memcpy(&words, p, sizeof words);
    return {std::bit_cast<V>(words << 16), std::bit_cast<V>(words & 0xffff0000U)};
  }
  static V load_panel(const float* p) { return load(p); }
  static V mac(V acc, Pair w, const float* x) {
    return fma(w.odd, broadcast(x[1]), fma(w.even, broadcast(x[0]), acc));
  }
  static V mac(V acc, V w, const float* x) { return fma(w, broadcast(*x), acc); }

  // kLanes words of codes, one of each neuron.
  static I load_words(const void* p) {
    I words;
    std::memcpy(&words, p, sizeof words);
    return words;
  }
  static I flip(I words, std::uint32_t bits) {
    return std::bit_cast<I>(std::bit_cast<U>(words) ^ bits);
  }
  // The codes of Bits bits that begin at bit At of the words.
  template <int Bits, int At>
  static V code(I words) {
    return __builtin_convertvector((words << (32 - Bits - At)) >> (32 - Bits), V);
  }
  // Words of two bf16, from numbers that are bf16 already: the upper halves of floats.
  static I pairs(V low, V high) {
    return std::bit_cast<I>((std::bit_cast<U>(low) >> 16) | std::bit_cast<U>(high));
  }

  // Codes of a step as 16-bit integers: inputs 0 and 2 of each neuron, 1 and 3.
  using Term = std::int16_t;
  struct Words {
    const std::int8_t* codes;
  };
  static constexpr int kTermsRows = 1;
  static constexpr int kOneTermRows = 1;
  static constexpr bool kOneTermAlways = false;
  static constexpr int kTermsPanels = 1;
  static constexpr std::int64_t kTermsUpTo = 4;
  static I terms_begin(std::int32_t /*sum*/) { return I{}; }
  static Words load_terms_codes(const std::int8_t* p) { return {p}; }
  static I mac(I acc, const Words& w, const std::int16_t* x) {
    for (int i = 0; i < kLanes; ++i) {
      const std::int8_t* of = w.codes + 4 * i;
      acc[i] += of[0] * x[0] + of[2] * x[1] + of[1] * x[2] + of[3] * x[3];
    }
    return acc;
  }

  // int4 in panels.
  static constexpr int kInt4Rows = 1;
  static constexpr int kInt4OneTermRows = 1;
  static constexpr int kInt4Panels = 1;
  static constexpr std::int64_t kInt4TermsUpTo = 4;
  using NibbleSums = I;
  struct Half {
    const std::uint8_t* bytes;
    unsigned shift;
  };
  struct Nibbles {
    Half low, high;
  };
  static Nibbles load_nibbles(const std::uint8_t* p) { return {{p, 0}, {p, 4}}; }
  static NibbleSums mac_nibbles(NibbleSums acc, Half codes, const std::int8_t* x) {
    for (int i = 0; i < kLanes; ++i) {
      for (int k = 0; k < 4; ++k) {
        acc[i] += static_cast<int>(codes.bytes[4 * i + k] >> codes.shift & 15U) * x[k];
      }
    }
    return acc;
  }
  static I integers(NibbleSums sums) { return sums; }
  // high · 2⁸ + low. In unsigned integers, since sums before the last one may wrap around.
  static I next_digit(I high, I low) {
    return std::bit_cast<I>((std::bit_cast<U>(high) << 8) + std::bit_cast<U>(low));
  }
  static I plus(I sum, std::int32_t i) {
    return std::bit_cast<I>(std::bit_cast<U>(sum) + static_cast<std::uint32_t>(i));
  }
  // int4_scale() of kLanes bytes.
  static V group_scales(const std::uint8_t* p) {
    return V{int4_scale(p[0]), int4_scale(p[1]), int4_scale(p[2]), int4_scale(p[3])};
  }
  // The codes in both halves of kLanes bytes of a row.
  struct Halves {
    V low, high;
  };
  static Halves load_halves(const std::uint8_t* p) {
    Halves out;
    for (int i = 0; i < kLanes; ++i) {
      out.low[i] = static_cast<float>(p[i] & 15U) - 8;
      out.high[i] = static_cast<float>(p[i] >> 4U) - 8;
    }
    return out;
  }

  static const std::int8_t* load_panel(const std::int8_t* p) { return p; }
  static I mac(I acc, const std::int8_t* w, const std::uint8_t* x) {
    for (int i = 0; i < kLanes; ++i) {
      for (int k = 0; k < 4; ++k) acc[i] += w[4 * i + k] * x[k];
    }
    return acc;
  }
  // max(a, |v|); a where v is NaN.
  static V larger(V a, V v) {
    for (int i = 0; i < kLanes; ++i) a[i] = std::abs(v[i]) > a[i] ? std::abs(v[i]) : a[i];
    return a;
  }
  // The low byte of each lane's bits, plus `zero`.
  static void store_low_bytes(std::uint8_t* p, V v, std::int32_t zero) {
    const I words = std::bit_cast<I>(v) + zero;
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(words[i]);
  }
  static constexpr std::int32_t kScreenZero = 128;  // what x = 0 is as an unsigned number
  // What sums of products with unsigned x start from, from −Σ w.
  static I screen_begin(const std::int8_t* sums) {
    I words;
    std::memcpy(&words, sums, sizeof words);
    return words * kScreenZero;
  }
  static V to_float(I integers) { return __builtin_convertvector(integers, V); }

  // Dot product steps over kDot<T> elements.
  template <class T>
  static constexpr int kDot = kLanes;
  template <class W, class T>
  static V dot(V acc, const W* w, const T* x) {
    return fma(load(w), load(x), acc);
  }

  // Bit i: !(p[i] <= threshold), so NaN is kept. 16 floats.
  static std::uint32_t kept16(const float* p, float threshold) {
    std::uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= std::uint32_t{!(p[i] <= threshold)} << i;
    return mask;
  }
};

}  // namespace
}  // namespace twell::portable
