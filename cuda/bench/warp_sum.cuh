// Sums of words that kernels of the benchmark read, so that none of the reading is left out.
#pragma once

#include <cuda_runtime.h>

namespace twell::bench {

__device__ __forceinline__ unsigned words_of(const uint4& v) { return v.x + v.y + v.z + v.w; }

// In every lane.
__device__ __forceinline__ unsigned sum_of_warp(unsigned value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value +=
        static_cast<unsigned>(__shfl_sync(0xffffffffU, static_cast<int>(value), lane ^ distance));
  }
  return value;
}

}  // namespace twell::bench
