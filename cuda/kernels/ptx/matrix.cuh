// PTX one-liners: matrix fragments and products of one warp (sm_80 and up).
//
// Fragments of m16n8k16, with g = lane / 4 and t = lane % 4; each word holds two neighbours in k
// (a, b), each float of c one element:
//   a[0] (g, 2t)   a[1] (g + 8, 2t)   a[2] (g, 2t + 8)   a[3] (g + 8, 2t + 8)
//   b[0] (2t, g)   b[1] (2t + 8, g)
//   c[0] (g, 2t)   c[1] (g, 2t + 1)   c[2] (g + 8, 2t)   c[3] (g + 8, 2t + 1)
//
// Of m16n8k32, each word with four neighbours in k, the lowest in its low byte; c as above:
//   a[0] (g, 4t)   a[1] (g + 8, 4t)   a[2] (g, 4t + 16)   a[3] (g + 8, 4t + 16)
//   b[0] (4t, g)   b[1] (4t + 16, g)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef TWELL_CUDA_EMULATED

namespace twell::cuda::ptx {

// Four 8 × 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 and
// gets elements (g, 2t) and (g, 2t + 1) of matrix i in to[i].
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// The same matrices transposed: lane l gets elements (2t, g) and (2t + 1, g) of matrix i in to[i].
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// c += a b, products exact, sums in f32.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Signed bytes, sums in 32 bits, which wrap.
__device__ __forceinline__ void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                       std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace twell::cuda::ptx

#endif  // TWELL_CUDA_EMULATED
