// The queue between pack_gate and gather_rows.
#pragma once

#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// Non-zeros of a chunk of a row that has `nnz`.
__device__ __forceinline__ int chunk_of(const RowQueue& queue, int nnz) {
  return min(kWindow, max(queue.chunk, (nnz + kMostChunks - 1) / kMostChunks));
}

// Called by one thread for each row. A row of several chunks is shared by blocks if there is room
// for their sums; else one block takes its chunks in turn, and comes to the same bits.
__device__ __forceinline__ void enqueue_row(const RowQueue& queue, int row, int nnz) {
  const int chunk = chunk_of(queue, nnz);
  const int chunks = (nnz + chunk - 1) / chunk;
  std::uint32_t* counters = queue.counters;
  queue.first_partial[row] = -1;
  if (chunks <= 1) {
    const std::uint32_t at = atomicAdd(counters + kBackItems, 1U);
    queue.items[queue.capacity - 1 - static_cast<int>(at)] = {row, -1};
    return;
  }
  const std::uint32_t partial =
      atomicAdd(counters + kPartialsUsed, static_cast<std::uint32_t>(chunks));
  if (partial + chunks > static_cast<std::uint32_t>(queue.partials)) {
    queue.items[atomicAdd(counters + kFrontItems, 1U)] = {row, -1};
    return;
  }
  queue.first_partial[row] = static_cast<std::int32_t>(partial);
  const std::uint32_t at = atomicAdd(counters + kFrontItems, static_cast<std::uint32_t>(chunks));
  for (int c = 0; c < chunks; ++c) queue.items[at + c] = {row, c};
}

// The next item of a column group; row −1 after the last.
__device__ __forceinline__ RowItem take_item(const RowQueue& queue, int group) {
  std::uint32_t* counters = queue.counters;
  const std::uint32_t front = counters[kFrontItems];
  const std::uint32_t at = atomicAdd(counters + kItemsTaken + group, 1U);
  if (at < front) return queue.items[at];
  if (at >= front + counters[kBackItems]) return {-1, -1};
  return queue.items[queue.capacity - 1 - static_cast<int>(at - front)];
}

}  // namespace twell::cuda
