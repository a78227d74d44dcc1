// The element types of the kernels: how two of them in a word are widened, rounded and multiplied.
#pragma once

#include "cuda/kernels/ptx/convert.cuh"
#include "cuda/kernels/ptx/matrix.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/shapes.h"

namespace twell::cuda {

struct Bf16 {
  static __device__ __forceinline__ float low(std::uint32_t word) {
    return __uint_as_float(word << 16);
  }
  static __device__ __forceinline__ float high(std::uint32_t word) {
    return __uint_as_float(word & 0xffff0000U);
  }
  static __device__ __forceinline__ std::uint32_t round2(float low, float high) {
    return ptx::round_bf16x2(low, high);
  }
  static __device__ __forceinline__ std::uint32_t relu2(std::uint32_t word) {
    return ptx::relu_bf16x2(word);
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_bf16(c, a, b0, b1);
  }
};

struct F16 {
  static __device__ __forceinline__ float low(std::uint32_t word) {
    return ptx::widen_f16(static_cast<std::uint16_t>(word));
  }
  static __device__ __forceinline__ float high(std::uint32_t word) {
    return ptx::widen_f16(static_cast<std::uint16_t>(word >> 16));
  }
  static __device__ __forceinline__ std::uint32_t round2(float low, float high) {
    return ptx::round_f16x2(low, high);
  }
  static __device__ __forceinline__ std::uint32_t relu2(std::uint32_t word) {
    return ptx::relu_f16x2(word);
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_f16(c, a, b0, b1);
  }
};

// Eight values side by side.
template <class T>
__device__ __forceinline__ void widen(const uint4& words, float (&v)[kVector]) {
  const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    v[i] = T::low(pairs[i / 2]);
    v[i + 1] = T::high(pairs[i / 2]);
  }
}

// Eight elements from `from`, of which the first `valid` exist and the others are zero: for rows
// that are not aligned to 16 bytes or end within a vector.
__device__ __forceinline__ uint4 load_elements(const std::uint16_t* from, int valid) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = 2 * i < valid ? from[2 * i] : 0U;
    const std::uint32_t high = 2 * i + 1 < valid ? from[2 * i + 1] : 0U;
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace twell::cuda
