// Tiles of the operands on their way from global to shared memory.
#pragma once

#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/common/swizzle.cuh"
#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// Copies kRows rows × kStageDepth inputs of a matrix, with all kThreads threads of the block. Rows
// past the matrix and inputs past `depth` are zero: their products add nothing.
template <int kRows, int kThreads, bool kAligned>
class TileLoader {
 public:
  __device__ __forceinline__ TileLoader(const DeviceMatrix& matrix, int first_row, int rows,
                                        int depth)
      : data_(matrix.data + first_row * matrix.stride),
        stride_(matrix.stride),
        rows_(rows - first_row),
        depth_(depth) {}

  // Inputs [k, k + kStageDepth) to `to`, a shared address.
  __device__ __forceinline__ void load(std::uint32_t to, int k) const {
    const int chunk = static_cast<int>(threadIdx.x) % kRowChunks;
    const int first = static_cast<int>(threadIdx.x) / kRowChunks;
    const int input = k + chunk * kVector;
#pragma unroll
    for (int i = 0; i < kRows / kRowStep; ++i) {
      const int row = first + i * kRowStep;
      const std::uint32_t address = to + swizzled(row, chunk);
      const bool exists = row < rows_ && input < depth_;
      // An address inside the matrix even where nothing is read.
      const std::uint16_t* from = exists ? data_ + row * stride_ + input : data_;
      if constexpr (kAligned) {
        ptx::cp_async_16(address, from, exists ? 16U : 0U);
      } else {
        ptx::store_shared_16(address, load_elements(from, exists ? depth_ - input : 0));
      }
    }
  }

 private:
  static constexpr int kRowStep = kThreads / kRowChunks;
  static_assert(kRows % kRowStep == 0);

  const std::uint16_t* data_;
  std::int64_t stride_;
  int rows_;
  int depth_;
};

// Walks the inputs stage by stage. `load(stage, k)` starts the copies of the inputs from k on;
// `compute(stage)` uses them. kStages - 1 stages are under way while one is computed: at 64 inputs
// a stage of 128 × 256 computes for about 1 µs, more than the latency of DRAM.
template <int kStages, class Load, class Compute>
__device__ __forceinline__ void run_pipeline(int depth, Load load, Compute compute) {
  const int steps = (depth + kStageDepth - 1) / kStageDepth;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) load(s, s * kStageDepth);
    ptx::cp_async_commit();
  }
  int stage = 0;
  int filled = kStages - 1;
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kStages - 2>();
    // Everyone's copies of this stage are there, and everyone is done with the stage before it,
    // which the next copies overwrite.
    __syncthreads();
    const int ahead = step + kStages - 1;
    if (ahead < steps) load(filled, ahead * kStageDepth);
    ptx::cp_async_commit();
    compute(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    filled = filled + 1 == kStages ? 0 : filled + 1;
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

}  // namespace twell::cuda
