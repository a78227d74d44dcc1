// PTX one-liners: bulk copies into shared memory and the barriers they arrive at (sm_90 and up; on
// earlier GPUs these do nothing, and kernels that call them must not be launched).
//
// A barrier's phases end one after the other: when all its arrivals have come, and all bytes that
// they announced. The first has parity 0, the next 1, the one after that 0 again.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef TWELL_CUDA_EMULATED

namespace twell::cuda::ptx {

// Eight bytes of shared memory that take so many arrivals a phase.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

// Copies that this thread starts see the barriers that it initialised.
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// Starts a copy from global to shared memory; addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// Waits for the end of the phase of this parity, then sees what its copies brought. A copy takes
// microseconds: after 2^32 cycles, two seconds, the kernel fails rather than hangs.
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  const long long begin = clock64();
  for (;;) {
    std::uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
    if (clock64() - begin > (1LL << 32)) __trap();
  }
#endif
}

}  // namespace twell::cuda::ptx

#endif  // TWELL_CUDA_EMULATED
