// A row's active neurons, from TwELL to a list in shared memory.
#pragma once

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/kernels.h"

namespace twell::cuda {

// Exclusive prefix sums of the counts of tiles [first, first + tiles) of a row; returns their
// total. All threads of the block, whose number is a multiple of 32.
__device__ __forceinline__ int scan_counts(ActiveList& list, const std::int32_t* counts,
                                           int tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int each = (tiles + threads - 1) / threads;
  const int begin = min(thread * each, tiles);
  const int end = min(begin + each, tiles);
  int own = 0;
  for (int t = begin; t < end; ++t) own += counts[t];
  int sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) list.warp_sums[thread / 32] = sum;
  __syncthreads();
  int before = sum - own;
  int total = 0;
  for (int w = 0; w < threads / 32; ++w) {
    const int warp_sum = list.warp_sums[w];
    if (w < thread / 32) before += warp_sum;
    total += warp_sum;
  }
  for (int t = begin; t < end; ++t) {
    list.offsets[t] = before;
    before += counts[t];
  }
  if (thread == 0) list.offsets[tiles] = total;
  __syncthreads();
  return total;
}

// The tile that holds non-zero `index`: the last whose offset is not above it. Empty tiles have the
// offset of their successor and are passed over.
__device__ __forceinline__ int tile_of(const ActiveList& list, int tiles, int index) {
  int low = 0;
  int high = tiles;  // offsets[low] <= index < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (list.offsets[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Fills the window with the group's non-zeros [begin, begin + count): a thread finds the tile of
// its own non-zero, so that a row costs the same whether its non-zeros share tiles or not.
template <class T>
__device__ __forceinline__ void fill_window(ActiveList& list, const DeviceTwell& gate, int row,
                                            int first_tile, int tiles, int begin, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int tile = tile_of(list, tiles, begin + i);
    const int within = begin + i - list.offsets[tile];
    const int stored = list.offsets[tile + 1] - list.offsets[tile];
    const std::int64_t place = static_cast<std::int64_t>(row) * gate.tiles + first_tile + tile;
    const std::uint32_t* slots = gate.slots + place * gate.capacity;
    if (stored > gate.capacity) {
      slots = gate.overflow + static_cast<std::int64_t>(slots[0]) * gate.tile;
    }
    const std::uint32_t slot = slots[within];
    list.neurons[i] = (first_tile + tile) * gate.tile + static_cast<int>(slot & 0xffffU);
    list.values[i] = T::high(slot);
  }
}

}  // namespace twell::cuda
