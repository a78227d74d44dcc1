// AMX tiles, one line per instruction.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx/tile_config.h"

namespace twell::amx {
namespace {

// g++ 12's own intrinsics paste the tile's number as text, so they take no template parameter, and
// may drop the stores that fill a configuration: hence assembly, with memory clobbers.
inline void load_config(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int T>
void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
void tile_load(const void* base, std::int64_t stride_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(base), "r"(stride_bytes) : "memory");
}
template <int T>
void tile_store(void* base, std::int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)"
               :
               : "i"(T), "r"(base), "r"(stride_bytes)
               : "memory");
}
// C += A · B over 32 inputs: A rows × 32 bf16, B 16 pairs × 16 columns × 2.
template <int C, int A, int B>
void tile_dpbf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// C += A · B over 64 inputs: A rows × 64 bytes without sign, B 16 fours × 16 columns × 4 with.
template <int C, int A, int B>
void tile_dpbusd() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// The same of A with sign.
template <int C, int A, int B>
void tile_dpbssd() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

inline void prefetch_l2(const void* at) { __builtin_prefetch(at, 0, 2); }

}  // namespace
}  // namespace twell::amx
