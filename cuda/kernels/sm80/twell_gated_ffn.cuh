// twell_gated_ffn and twell_spmm on TwELL: y = Σ h[n] Wd[n] over a row's active neurons n, with
// h[n] = g[n] (x · Wu[n]) or given.
//
// With few rows, several blocks share a row: each writes its partial sum, and the last one to
// finish adds them in the order of the blocks.
#pragma once

#include "cuda/kernels/common/active_list.cuh"
#include "cuda/kernels/common/gather.cuh"
#include "cuda/kernels/ptx/grid.cuh"

namespace twell::cuda {

// Grid: splits × rows (folded into x) × groups of columns (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads, kGatherBlocks)
    twell_gather_sm80(const __grid_constant__ TwellGatherArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  const int row = static_cast<int>(blockIdx.x) / args.splits;
  const int split = static_cast<int>(blockIdx.x) % args.splits;
  const int first_column = static_cast<int>(blockIdx.y) * kGatherColumns;
  const bool reports = blockIdx.y == 0;
  const std::uint16_t* x = kGated ? args.x.data + row * args.x.stride : nullptr;
  BlockSums sums(first_column, args.depth);
  sums.clear();
  if (threadIdx.x == 0) list.row_nnz = 0;
  // While the gate is multiplied, which does not write x.
  const bool staged = kGated && args.depth <= kDotInputs;
  if (staged) stage_inputs<T, kAligned>(list.inputs, x, 0, args.depth);
  ptx::wait_for_previous();
  for (int tile = 0; tile < args.gate.tiles; tile += kGroupTiles) {
    const int tiles = min(kGroupTiles, args.gate.tiles - tile);
    const int found = scan_counts(
        list, args.gate.counts + static_cast<std::int64_t>(row) * args.gate.tiles + tile, tiles);
    if (threadIdx.x == 0) list.row_nnz += found;
    // This block's share of the group. (found · splits may pass 2³¹.)
    const int begin = static_cast<int>(static_cast<std::int64_t>(found) * split / args.splits);
    const int end = static_cast<int>(static_cast<std::int64_t>(found) * (split + 1) / args.splits);
    for (int window = begin; window < end; window += kWindow) {
      const int count = min(kWindow, end - window);
      fill_window<T>(list, args.gate, row, tile, tiles, window, count);
      __syncthreads();
      if (args.neuron_counts != nullptr && reports) {
        for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
          atomicAdd(args.neuron_counts + list.neurons[i], 1ULL);
        }
      }
      if constexpr (kGated) {
        if (args.splits > 1) prefetch_rows(list, count, args.down, args.depth);
        dot_products<T, kAligned>(list, count, args.up, args.depth, [&](int first) {
          if (!staged) stage_inputs<T, kAligned>(list.inputs, x, first, args.depth);
        });
        __syncthreads();
      }
      sums.template add<T, kAligned>(list, count, args.down);
      __syncthreads();
    }
  }
  if (args.row_nnz != nullptr && reports && split == 0 && threadIdx.x == 0) {
    args.row_nnz[row] = list.row_nnz;
  }
  if (args.splits > 1) {
    const std::int64_t place = row * static_cast<std::int64_t>(gridDim.y) + blockIdx.y;
    const std::int64_t floats = BlockSums::floats(args.depth);
    float* partial = args.partial + place * args.splits * floats;
    sums.store_partial(partial + split * floats);
    if (!last_of_row(list, args.tickets + place, args.splits)) return;
    sums.clear();
    sums.add_partials(partial, floats, args.splits);
  }
  sums.template store<T, kAligned>(args.y + row * args.y_stride);
}

}  // namespace twell::cuda
