// Reading a dense activation that a library's GEMM has just written.
#pragma once

#include "kernels/cuda/common/pack_epilogue.cuh"

namespace twell::cuda {

// Eight columns from `column` on, activated and rounded; zeros from `end` on.
template <class T, bool kWide, bool kAligned>
__device__ __forceinline__ uint4 load_gate(const GateSource& gate, std::int64_t row, int column,
                                           int end) {
  if (column >= end) return make_uint4(0, 0, 0, 0);
  const std::int64_t at = row * gate.stride + column;
  float v[kVector];
  if constexpr (kWide) {
    const float* from = static_cast<const float*>(gate.data) + at;
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(from + i);
      v[i] = part.x;
      v[i + 1] = part.y;
      v[i + 2] = part.z;
      v[i + 3] = part.w;
    }
  } else {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(gate.data) + at;
    uint4 words;
    if constexpr (kAligned) {
      words = ptx::load_stream(from);
    } else {
      words = load_elements(from, end - column);
    }
    if (!gate.activates) return words;  // whole vectors, or ended by load_elements
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      v[i] = T::low(pairs[i / 2]);
      v[i + 1] = T::high(pairs[i / 2]);
    }
  }
  std::uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    rounded[i / 2] = T::round2(activate(v[i], column + i < end, gate.activation),
                               activate(v[i + 1], column + i + 1 < end, gate.activation));
  }
  return make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
}

}  // namespace twell::cuda
