// gather_rows: y = sums + Σ h[n] Wd[n] over the rows of a queue, with h[n] = g[n] (x · Wu[n]) or
// given. For training it keeps g and u of the places, and adds up |h|.
#pragma once

#include "cuda/kernels/common/queue_sums.cuh"

namespace twell::cuda {

// Σ of the threads' values, in thread 0. All threads; begins with a barrier.
__device__ __forceinline__ float sum_of_block(ActiveList& list, float own) {
  const float sum = sum_of_warp(own);
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    list.warp_sums[threadIdx.x / 32] = static_cast<int>(__float_as_uint(sum));
  __syncthreads();
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w)
    total += __uint_as_float(static_cast<unsigned>(list.warp_sums[w]));
  return total;
}

// What training wants of a window, between its dot products and its sums. `total`: Σ |h| of the
// row so far, in thread 0.
template <class T, bool kGated>
__device__ __forceinline__ void keep_window(ActiveList& list, const Chunk& chunk,
                                            const GatherRowsArgs& args, float& total) {
  const KeptPlaces& kept = args.kept;
  const std::uint32_t* slots =
      args.gate.slots + std::int64_t{chunk.row} * args.gate.capacity + chunk.begin;
  const std::int64_t first = kept.offsets[chunk.row] + chunk.begin;
  float own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < chunk.count; i += static_cast<int>(blockDim.x)) {
    own += fabsf(list.values[i]);
    if (first + i >= kept.places) continue;
    const std::uint32_t u = kGated ? T::round2(0.0F, list.dots[i]) : 0U;
    kept.values[first + i] = slots[i] >> 16 | u;
  }
  if (kept.l1 == nullptr) return;
  const float sum = sum_of_block(list, own);
  if (threadIdx.x != 0) return;
  if (chunk.shared >= 0) {
    kept.chunk_l1[chunk.shared] = sum;
  } else {
    total += sum;
  }
}

__device__ __forceinline__ void finish_l1(const KeptPlaces& kept, int row, int first, int chunks,
                                          float& total) {
  for (int c = 0; first >= 0 && c < chunks; ++c) {
    total += ptx::load_other_block(kept.chunk_l1 + first + c);
  }
  kept.l1[row] += total;
  total = 0;
}

// Grid: blocks × groups of columns (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads, kGatherBlocks)
    gather_rows_sm80(const __grid_constant__ GatherRowsArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  const int group = static_cast<int>(blockIdx.y);
  BlockSums sums(group * kGatherColumns, args.depth);
  BlockTeam team(list, args.queue, group);
  const bool keeps = args.kept.offsets != nullptr && group == 0;
  float l1 = 0;
  sum_rows(
      team, sums, args.queue,
      PartialSums{args.partial, BlockSums::floats(args.depth), group, static_cast<int>(gridDim.y)},
      [&](int row) { return args.gate.counts[row]; },
      [&](const Chunk& chunk) {
        const std::int64_t row = chunk.row;
        const std::uint32_t* slots = args.gate.slots + row * args.gate.capacity + chunk.begin;
        int i = static_cast<int>(threadIdx.x);
        std::uint32_t slot = i < chunk.count ? slots[i] : 0;
        const auto fill = [&] {
          while (i < chunk.count) {
            list.neurons[i] = static_cast<int>(slot & 0xffffU);
            list.values[i] = T::high(slot);
            i += static_cast<int>(blockDim.x);
            if (i < chunk.count) slot = slots[i];
          }
        };
        if constexpr (kGated) {
          dot_products<T, kAligned>(list, chunk.count, args.up, args.depth, [&](int first) {
            stage_inputs<T, kAligned>(list.inputs, args.x.data + row * args.x.stride, first,
                                      args.depth);
            if (first == 0) fill();  // the first slots came while x did
          });
        } else {
          fill();
        }
        __syncthreads();
        if (keeps) keep_window<T, kGated>(list, chunk, args, l1);
        sums.template add<T, kAligned>(list, chunk.count, args.down);
        __syncthreads();
      },
      [&](int row) {
        if (args.sums != nullptr) sums.add_row(args.sums + row * args.sums_stride);
      },
      [&](int row, int first, int chunks) {
        sums.template store<T, kAligned>(args.y + row * args.y_stride);
        if (keeps && args.kept.l1 != nullptr && threadIdx.x == 0) {
          finish_l1(args.kept, row, first, chunks, l1);
        }
      });
}

}  // namespace twell::cuda
