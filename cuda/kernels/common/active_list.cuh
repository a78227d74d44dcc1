// A row's active neurons, from TwELL to a list in shared memory.
#pragma once

#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// Sum of `own` over the threads of the block before this one, and over all. All threads, whose
// number is a multiple of 32; has a barrier, and wants one before it is called again.
struct BlockPrefix {
  int before, total;
};
__device__ __forceinline__ BlockPrefix block_prefix(int (&warp_sums)[32], int own) {
  const int thread = static_cast<int>(threadIdx.x);
  int sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, sum, distance);
    if (thread % 32 >= distance) sum += other;
  }
  if (thread % 32 == 31) warp_sums[thread / 32] = sum;
  __syncthreads();
  BlockPrefix prefix = {sum - own, 0};
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < thread / 32) prefix.before += warp_sums[w];
    prefix.total += warp_sums[w];
  }
  return prefix;
}

// Exclusive prefix sums of the counts of tiles [first, first + tiles) of a row; returns their
// total. All threads of the block, whose number is a multiple of 32.
__device__ __forceinline__ int scan_counts(ActiveList& list, const std::int32_t* counts,
                                           int tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int each = (tiles + threads - 1) / threads;
  const int begin = min(thread * each, tiles);
  const int end = min(begin + each, tiles);
  int own = 0;
  for (int t = begin; t < end; ++t) own += counts[t];
  auto [before, total] = block_prefix(list.warp_sums, own);
  for (int t = begin; t < end; ++t) {
    list.offsets[t] = before;
    before += counts[t];
  }
  if (thread == 0) list.offsets[tiles] = total;
  __syncthreads();
  return total;
}

// The neurons of places [begin, begin + count) of a row of `words` words of bits, to the window.
// All threads; its results want a barrier after it.
__device__ __forceinline__ void list_fired(ActiveList& list, const std::uint32_t* row, int words,
                                           int begin, int count) {
  const int threads = static_cast<int>(blockDim.x);
  const int each = (words + threads - 1) / threads;
  const int first = min(static_cast<int>(threadIdx.x) * each, words);
  const int end = min(first + each, words);
  int own = 0;
  for (int w = first; w < end; ++w) own += __popc(row[w]);
  int place = block_prefix(list.warp_sums, own).before - begin;
  for (int w = first; w < end && place < count; ++w) {
    for (std::uint32_t bits = row[w]; bits != 0; bits &= bits - 1, ++place) {
      if (place >= 0 && place < count) {
        list.neurons[place] = w * 32 + __ffs(static_cast<int>(bits)) - 1;
      }
    }
  }
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
