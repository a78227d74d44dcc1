// PTX one-liners: a kernel that starts before the one it depends on has ended (sm_90 and up; on
// earlier GPUs it starts after, and these do nothing).
#pragma once

#include <cuda_runtime.h>

#ifndef TWELL_CUDA_EMULATED

namespace twell::cuda::ptx {

// Lets the next kernel's blocks start as soon as every block of this one has said so or ended.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and what it wrote can be read.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace twell::cuda::ptx

#endif  // TWELL_CUDA_EMULATED
