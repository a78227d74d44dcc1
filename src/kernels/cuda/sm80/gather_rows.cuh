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

// sum += Σ h[n] Wd[n] over `count` slots, one window at most. Ends with a barrier.
template <class T, bool kGated, bool kAligned>
__device__ __forceinline__ void gather_window(ActiveList& list, RowSum& sum,
                                              const std::uint32_t* slots, int count,
                                              const std::uint16_t* x, const GatherRowsArgs& args,
                                              int first_column) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const std::uint32_t slot = slots[i];
    list.neurons[i] = static_cast<int>(slot & 0xffffU);
    list.values[i] = T::high(slot);
  }
  __syncthreads();
  if constexpr (kGated) {
    dot_products<T, kAligned>(list, count, x, args.up, args.depth);
    __syncthreads();
  }
  sum.template add<T, kAligned>(list, count, args.down, first_column, args.depth);
  __syncthreads();
}

// Grid: blocks × column passes (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows_sm80(const __grid_constant__ GatherRowsArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  float* total = own_sums();
  const RowQueue& queue = args.queue;
  const int pass = static_cast<int>(blockIdx.y);
  const int passes = static_cast<int>(gridDim.y);
  const int first_column = pass * kGatherColumns;
  const std::int64_t floats = static_cast<std::int64_t>(blockDim.x) * kThreadFloats;
  RowItem next = {-1, -1};
  if (threadIdx.x == 0) next = take_item(queue, pass);
  for (int turn = 0;; turn ^= 1) {
    // Of two places: some threads may still read the item before.
    if (threadIdx.x == 0) list.items[turn] = next;
    __syncthreads();
    const RowItem item = list.items[turn];
    if (item.row < 0) return;
    // The next item's latency passes behind the work on this one.
    if (threadIdx.x == 0) next = take_item(queue, pass);

    const std::int64_t row = item.row;
    const std::uint16_t* x = kGated ? args.x.data + row * args.x.stride : nullptr;
    const std::uint32_t* slots = args.gate.slots + row * args.gate.capacity;
    const int nnz = args.gate.counts[row];
    const int chunk = chunk_of(queue, nnz);
    const auto start = [&] {
      RowSum sum;
      if (args.sums != nullptr)
        sum.load(args.sums + row * args.sums_stride, first_column, args.depth);
      return sum;
    };
    RowSum sum;
    if (item.chunk >= 0) {
      const int begin = item.chunk * chunk;
      gather_window<T, kGated, kAligned>(list, sum, slots + begin, min(chunk, nnz - begin), x, args,
                                         first_column);
      const int chunks = (nnz + chunk - 1) / chunk;
      const std::int64_t first = std::int64_t{queue.first_partial[row]} * passes + pass * chunks;
      float* partial = args.partial + first * floats;
      sum.store_partial(partial + item.chunk * floats);
      if (!last_of_row(list, queue.finished + row * passes + pass, chunks)) continue;
      sum = start();
      for (int c = 0; c < chunks; ++c) sum.add_partial(partial + c * floats);
    } else {
      start().store_own(total);
      for (int begin = 0; begin < nnz; begin += chunk) {
        RowSum part;
        gather_window<T, kGated, kAligned>(list, part, slots + begin, min(chunk, nnz - begin), x,
                                           args, first_column);
        sum.load_own(total);
        sum.add(part);
        sum.store_own(total);
      }
      sum.load_own(total);
    }
    sum.template store<T, kAligned>(args.y + row * args.y_stride, first_column, args.depth);
  }
}

}  // namespace twell::cuda
