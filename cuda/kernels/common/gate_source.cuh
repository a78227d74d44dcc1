// Reading a dense activation that a library's GEMM has just written.
#pragma once

#include "cuda/kernels/common/pack_epilogue.cuh"

namespace twell::cuda {
// Eight columns of a dense activation as they stand there.
template <bool kWide>
struct RawVector {
  uint4 words[kWide ? 2 : 1];
};
// Those from `column` on, if that is before `end`. Nothing but the load depends on it, so that the
// compiler makes no branch and starts several loads before it uses one.
template <bool kWide, bool kAligned>
__device__ __forceinline__ RawVector<kWide> load_raw(const GateSource& gate, std::int64_t row,
                                                     int column, int end) {
  RawVector<kWide> raw = {};
  const std::int64_t at = row * gate.stride + column;
  if constexpr (kAligned) {
    const auto* from = static_cast<const std::byte*>(gate.data) + at * (kWide ? 4 : 2);
    if (column < end) raw.words[0] = ptx::load_stream(from);
    if constexpr (kWide) {
      if (column < end) raw.words[1] = ptx::load_stream(from + 16);
    }
  } else {
    static_assert(!kWide, "what a library's GEMM writes is aligned");
    raw.words[0] = load_elements(static_cast<const std::uint16_t*>(gate.data) + at, end - column);
  }
  return raw;
}
template <class T, bool kWide>
__device__ __forceinline__ void widen(const RawVector<kWide>& raw, float (&v)[kVector]) {
  if constexpr (kWide) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& words = raw.words[half];
      v[4 * half] = __uint_as_float(words.x);
      v[4 * half + 1] = __uint_as_float(words.y);
      v[4 * half + 2] = __uint_as_float(words.z);
      v[4 * half + 3] = __uint_as_float(words.w);
    }
  } else {
    widen<T>(raw.words[0], v);
  }
}

// Activated and rounded; zeros from `end` on. ReLU of what is rounded already is one instruction
// for two values, of 24 and more.
template <class T, bool kWide>
__device__ __forceinline__ uint4 activated_vector(const GateSource& gate,
                                                  const RawVector<kWide>& raw, int column,
                                                  int end) {
  if constexpr (!kWide) {
    const bool plain = gate.activation.kind == Activation::relu && gate.activation.kept_above == 0;
    if (plain && column + kVector <= end) {
      const uint4& w = raw.words[0];
      return make_uint4(T::relu2(w.x), T::relu2(w.y), T::relu2(w.z), T::relu2(w.w));
    }
  }
  float v[kVector];
  widen<T, kWide>(raw, v);
  std::uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    rounded[i / 2] = T::round2(activate(v[i], column + i < end, gate.activation),
                               activate(v[i + 1], column + i + 1 < end, gate.activation));
  }
  return make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
}

// h of g and u, rounded; 0 wherever g is, whatever u.
template <class T>
__device__ __forceinline__ uint4 masked_hidden(const uint4& g, const float (&u)[kVector]) {
  if ((g.x | g.y | g.z | g.w) == 0) return g;
  float v[kVector];
  widen<T>(g, v);
  std::uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    rounded[i / 2] = T::round2(v[i] != 0.0F ? combine(kPlainUp, v[i], u[i]) : 0.0F,
                               v[i + 1] != 0.0F ? combine(kPlainUp, v[i + 1], u[i + 1]) : 0.0F);
  }
  return make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
}

}  // namespace twell::cuda
