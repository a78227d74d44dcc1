// Starting a kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/kernels/common/check.h"
#include "cuda/kernels/shapes.h"

namespace twell::cuda {

struct LaunchShape {
  dim3 grid;
  int threads = 0;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  // May start before the kernel before it on the stream has ended; it then waits by itself
  // (ptx/grid.cuh). On GPUs before sm_90 the attribute is not allowed.
  bool overlaps_previous = false;
};

// For threads that each take eight neighbouring elements of [rows, cols] at a time.
inline LaunchShape product_shape(std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  // More than the largest GPUs hold at a time, so that their threads take several vectors each.
  constexpr std::int64_t kMostBlocks = 4096;
  const std::int64_t vectors = rows * ((cols + kVector - 1) / kVector);
  const std::int64_t blocks =
      std::min((vectors + kProductThreads - 1) / kProductThreads, kMostBlocks);
  return {dim3(static_cast<unsigned>(blocks)), kProductThreads, 0, stream};
}

// Whether the code that the current GPU runs of this kernel has that wait in it: a later GPU may
// run code made from PTX of compute_80, which has none. Asked once for a kernel and GPU.
inline bool waits_for_previous(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, bool> known;
  int device = 0;
  TWELL_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  auto found = known.find({kernel, device});
  if (found == known.end()) {
    cudaFuncAttributes attributes = {};
    TWELL_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    found = known.emplace(std::pair(kernel, device), attributes.ptxVersion >= 90).first;
  }
  return found->second;
}

template <class Args>
void launch_kernel(void (*kernel)(Args), const LaunchShape& shape, const Args& args) {
  // What a block may use without asking.
  constexpr std::size_t kDefaultShared = std::size_t{48} << 10;
  if (shape.shared_bytes > kDefaultShared) {
    TWELL_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  const bool overlaps =
      shape.overlaps_previous && waits_for_previous(reinterpret_cast<const void*>(kernel));
  config.numAttrs = overlaps ? 1 : 0;
  TWELL_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
}

}  // namespace twell::cuda
