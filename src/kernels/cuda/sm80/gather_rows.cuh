// gather_rows: y = sums + Σ h[n] Wd[n] over the rows of a queue, with h[n] = g[n] (x · Wu[n]) or
// given.
//
// As many blocks as the GPU holds take chunks of rows off the queue until it is empty, so that a
// row that fires everything keeps no others waiting. The sums of a row's chunks are added in order,
// by the block that finishes last or by the one that has them all: the bits are the same.
#pragma once

#include "kernels/cuda/common/gather.cuh"
#include "kernels/cuda/common/row_queue.cuh"

namespace twell::cuda {

// sums += Σ h[n] Wd[n] over `count` slots, one window at most. Ends with a barrier.
template <class T, bool kGated, bool kAligned>
__device__ __forceinline__ void gather_window(ActiveList& list, BlockSums& sums,
                                              const std::uint32_t* slots, int count,
                                              const std::uint16_t* x, const GatherRowsArgs& args) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const std::uint32_t slot = slots[i];
    list.neurons[i] = static_cast<int>(slot & 0xffffU);
    list.values[i] = T::high(slot);
  }
  if constexpr (kGated) dot_products<T, kAligned>(list, count, x, args.up, args.depth);
  __syncthreads();
  sums.template add<T, kAligned>(list, count, args.down);
  __syncthreads();
}

// Grid: blocks × groups of columns (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads, kGatherBlocks)
    gather_rows_sm80(const __grid_constant__ GatherRowsArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  const RowQueue& queue = args.queue;
  const int group = static_cast<int>(blockIdx.y);
  const int groups = static_cast<int>(gridDim.y);
  BlockSums sums(group * kGatherColumns, args.depth);
  const std::int64_t floats = BlockSums::floats(args.depth);
  // Of a row whose chunks this block takes in turn.
  const std::int64_t own = std::int64_t{queue.partials} + blockIdx.x;
  float* total = args.partial + (own * groups + group) * floats;
  RowItem next = {-1, -1};
  if (threadIdx.x == 0) next = take_item(queue, group);
  for (int turn = 0;; turn ^= 1) {
    // Of two places: some threads may still read the item before.
    if (threadIdx.x == 0) list.items[turn] = next;
    __syncthreads();
    const RowItem item = list.items[turn];
    if (item.row < 0) return;
    // The next item's latency passes behind the work on this one.
    if (threadIdx.x == 0) next = take_item(queue, group);

    const std::int64_t row = item.row;
    const std::uint16_t* x = kGated ? args.x.data + row * args.x.stride : nullptr;
    const std::uint32_t* slots = args.gate.slots + row * args.gate.capacity;
    const float* before = args.sums == nullptr ? nullptr : args.sums + row * args.sums_stride;
    const int nnz = args.gate.counts[row];
    const int chunk = chunk_of(queue, nnz);
    if (item.chunk >= 0) {
      const int begin = item.chunk * chunk;
      sums.clear();
      gather_window<T, kGated, kAligned>(list, sums, slots + begin, min(chunk, nnz - begin), x,
                                         args);
      const int chunks = (nnz + chunk - 1) / chunk;
      const std::int64_t first = std::int64_t{queue.first_partial[row]} * groups + group * chunks;
      float* partial = args.partial + first * floats;
      sums.store_partial(partial + item.chunk * floats);
      if (!last_of_row(list, queue.finished + row * groups + group, chunks)) continue;
      sums.clear();
      if (before != nullptr) sums.add_row(before);
      for (int c = 0; c < chunks; ++c) sums.add_partial(partial + c * floats);
    } else {
      for (int begin = 0; begin == 0 || begin < nnz; begin += chunk) {
        sums.clear();
        gather_window<T, kGated, kAligned>(list, sums, slots + begin, min(chunk, nnz - begin), x,
                                           args);
        if (begin > 0) {
          sums.add_partial(total);
        } else if (before != nullptr) {
          sums.add_row(before);
        }
        if (begin + chunk < nnz) sums.store_partial(total);
      }
    }
    sums.template store<T, kAligned>(args.y + row * args.y_stride);
  }
}

}  // namespace twell::cuda
