// PTX one-liners: loads, stores and asynchronous copies.
//
// Each has a twin of the same name for the host (cuda/tests/emulation), used where
// TWELL_CUDA_EMULATED is defined; kernels contain no assembly.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#ifndef TWELL_CUDA_EMULATED

namespace twell::cuda::ptx {

// The block's dynamic shared memory.
__device__ __forceinline__ std::byte* dynamic_shared() {
  extern __shared__ __align__(128) std::byte memory[];
  return memory;
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, past L1; of these the first `bytes` (0 or 16) are read and
// the rest is zero.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from,
                                            std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads of memory that no one writes during the kernel are no volatile assembly: the compiler may
// start them as early as it can.

// 16 bytes, kept in L1: rows that tokens share.
__device__ __forceinline__ uint4 load_shared_row(const void* from) {
  uint4 v;
  asm("ld.global.nc.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

__device__ __forceinline__ float4 load_shared_row_f4(const float* from) {
  float4 v;
  asm("ld.global.nc.L1::evict_last.v4.f32 {%0, %1, %2, %3}, [%4];"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(from));
  return v;
}

// 16 bytes that are read once: a stream.
__device__ __forceinline__ uint4 load_stream(const void* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

// A word that another block of the same kernel may have written: past L1.
__device__ __forceinline__ float load_other_block(const float* from) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_other_block_f4(const float* from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// Starts bringing the line that holds an address into L2.
__device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// 16 bytes to global memory, aligned to as many.
__device__ __forceinline__ void store_16(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_f4(float* to, float4 v) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_16(std::uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

}  // namespace twell::cuda::ptx

#endif  // TWELL_CUDA_EMULATED
