// PTX one-liners: conversions between f32 and 16-bit floats, to nearest even.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef TWELL_CUDA_EMULATED

namespace twell::cuda::ptx {

// Two values in one word, `low` in its low half.
__device__ __forceinline__ std::uint32_t round_bf16x2(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ std::uint32_t round_f16x2(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// max(v, 0) of both; of a NaN, NaN.
__device__ __forceinline__ std::uint32_t relu_bf16x2(std::uint32_t word) {
  std::uint32_t out;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(word), "r"(0U));
  return out;
}
__device__ __forceinline__ std::uint32_t relu_f16x2(std::uint32_t word) {
  std::uint32_t out;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(word), "r"(0U));
  return out;
}

__device__ __forceinline__ float widen_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

}  // namespace twell::cuda::ptx

#endif  // TWELL_CUDA_EMULATED
