// From the bits of what fired, by rows, to lists of places, by neurons.
//
//   scan_rows      counts of rows → their first places
//   count_fired    bits → how often each neuron fired in each block of 256 rows
//   order_neurons  those counts → the same summed over the blocks before; the queue of neurons
//   place_fired    bits again → each place where it belongs
//
// A warp transposes 32 rows of a word by ballots, one for each neuron that fired in any of them: at
// 1 % there are 9 of 32. No atomics, so the lists ascend whatever the order of blocks.
#pragma once

#include "cuda/kernels/common/active_list.cuh"
#include "cuda/kernels/common/row_queue.cuh"
#include "cuda/kernels/train_kernels.h"

namespace twell::cuda {

constexpr int kScanThreads = 1024;
constexpr int kOrderThreads = 128;

// Shared memory of count_fired and place_fired. counts[n][w]: rows of warp w that fired neuron n,
// 32 at most.
struct TransposeShared {
  std::uint8_t counts[kTransposeNeurons][kTransposeRows / 32];
  int starts[kTransposeNeurons];
  int warp_sums[2][32];
};

// One block: 16 rows of 16,384 for each thread. A call's workspace keeps the rows' places below
// 2³¹.
__global__ void __launch_bounds__(kScanThreads)
    scan_rows_sm80(const __grid_constant__ ScanRowsArgs args) {
  auto& warp_sums = *reinterpret_cast<int(*)[32]>(ptx::dynamic_shared());
  const int each = (args.rows + kScanThreads - 1) / kScanThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, args.rows);
  const int end = min(first + each, args.rows);
  int own = 0;
  for (int i = first; i < end; ++i) own += args.counts[i];
  std::int64_t* offsets = args.offsets + args.first;
  const std::int64_t base = args.first == 0 ? 0 : offsets[0];
  std::int64_t place = base + block_prefix(warp_sums, own).before;
  if (threadIdx.x == 0 && args.first == 0) offsets[0] = 0;
  for (int i = first; i < end; ++i) {
    place += args.counts[i];
    offsets[i + 1] = place;
  }
}

__device__ __forceinline__ std::uint32_t any_of_warp(std::uint32_t bits) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    bits |= __shfl_xor_sync(0xffffffffU, bits, distance);
  }
  return bits;
}

// The bits of a thread's row in this block's words: none of rows beyond the range.
struct FiredRow {
  __device__ __forceinline__ explicit FiredRow(const TransposeArgs& args)
      : row(static_cast<int>(blockIdx.x) * kTransposeRows + static_cast<int>(threadIdx.x)),
        first_word(static_cast<int>(blockIdx.y) * kTransposeWords),
        end_word(min(first_word + kTransposeWords, args.fired.stride)) {
    place = row < args.rows ? args.offsets[row] : args.range.end;
    exists = place >= args.range.first && place < args.range.end;
    words = args.fired.words + static_cast<std::int64_t>(exists ? row : 0) * args.fired.stride;
  }
  int row, first_word, end_word;
  std::int64_t place;  // its first
  bool exists;
  const std::uint32_t* words;

  // take(neuron of the block, rows of the warp that fired it, as bits), neurons ascending.
  template <class Take>
  __device__ __forceinline__ void walk(Take take) const {
    if (!__any_sync(0xffffffffU, exists)) return;
#pragma unroll 1
    for (int w = first_word; w < end_word; w += kFiredWords) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (exists) v = *reinterpret_cast<const uint4*>(words + w);
      const std::uint32_t bits[kFiredWords] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < kFiredWords; ++i) {
        for (std::uint32_t any = any_of_warp(bits[i]); any != 0; any &= any - 1) {
          const int bit = __ffs(static_cast<int>(any)) - 1;
          const std::uint32_t rows =
              __ballot_sync(0xffffffffU, static_cast<int>(bits[i] >> bit & 1U));
          take((w - first_word + i) * 32 + bit, rows);
        }
      }
    }
  }
};

__device__ __forceinline__ void count_by_warp(TransposeShared& shared, const FiredRow& row) {
  auto* words = reinterpret_cast<std::uint32_t*>(shared.counts);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof shared.counts) / 4;
       i += kTransposeRows) {
    words[i] = 0;
  }
  __syncthreads();
  row.walk([&](int neuron, std::uint32_t rows) {
    if (threadIdx.x % 32 == 0) {
      shared.counts[neuron][threadIdx.x / 32] = static_cast<std::uint8_t>(__popc(rows));
    }
  });
  __syncthreads();
}

// Grid of both: blocks of rows × groups of words.
__global__ void __launch_bounds__(kTransposeRows)
    count_fired_sm80(const __grid_constant__ TransposeArgs args) {
  auto& shared = *reinterpret_cast<TransposeShared*>(ptx::dynamic_shared());
  const FiredRow row(args);
  count_by_warp(shared, row);
  const std::int64_t neurons = std::int64_t{args.fired.stride} * 32;
  for (int n = static_cast<int>(threadIdx.x); n < (row.end_word - row.first_word) * 32;
       n += kTransposeRows) {
    int sum = 0;
    for (const std::uint8_t count : shared.counts[n]) sum += count;
    args.counts[blockIdx.x * neurons + row.first_word * 32 + n] = sum;
  }
  if (blockIdx.y == 0 && row.exists) {
    enqueue_row(args.row_queue, row.row, static_cast<int>(args.offsets[row.row + 1] - row.place));
  }
}

__global__ void __launch_bounds__(kOrderThreads)
    order_neurons_sm80(const __grid_constant__ TransposeArgs args) {
  const int neurons = args.fired.stride * 32;
  const int neuron = static_cast<int>(blockIdx.x) * kOrderThreads + static_cast<int>(threadIdx.x);
  if (neuron >= neurons) return;
  std::int32_t* counts = args.counts + neuron;
  int sum = 0;
  constexpr int kAhead = 8;  // loads in flight
  for (int first = 0; first < args.blocks; first += kAhead) {
    int block[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      block[i] = first + i < args.blocks ? counts[std::int64_t{first + i} * neurons] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < args.blocks) counts[std::int64_t{first + i} * neurons] = sum;
      sum += block[i];
    }
  }
  counts[static_cast<std::int64_t>(args.blocks) * neurons] = sum;
  if (neuron < args.cols) enqueue_row(args.neuron_queue, neuron, sum);
}

// Where the places of the block's neurons start: those of the neurons before, and those of the rows
// before. The first blocks of rows write the starts of all neurons.
__device__ __forceinline__ void find_starts(TransposeShared& shared, const TransposeArgs& args) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t neurons = std::int64_t{args.fired.stride} * 32;
  const std::int32_t* totals = args.counts + args.blocks * neurons;
  const std::int32_t* before = args.counts + blockIdx.x * neurons;
  const int first = static_cast<int>(blockIdx.y) * kTransposeNeurons;
  int own = 0;
  for (int n = thread; n < first; n += kTransposeRows) own += totals[n];
  int start = block_prefix(shared.warp_sums[0], own).total;
  constexpr int kEach = kTransposeNeurons / kTransposeRows;
  int counts[kEach];
  own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int n = first + thread * kEach + i;
    counts[i] = n < neurons ? totals[n] : 0;
    own += counts[i];
  }
  start += block_prefix(shared.warp_sums[1], own).before;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int n = first + thread * kEach + i;
    if (n < neurons) shared.starts[thread * kEach + i] = start + before[n];
    if (blockIdx.x == 0 && n < args.cols) args.starts[n] = start;
    start += counts[i];
    if (blockIdx.x == 0 && n + 1 == args.cols) args.starts[args.cols] = start;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kTransposeRows)
    place_fired_sm80(const __grid_constant__ TransposeArgs args) {
  auto& shared = *reinterpret_cast<TransposeShared*>(ptx::dynamic_shared());
  const FiredRow row(args);
  find_starts(shared, args);
  count_by_warp(shared, row);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // The place of the row's next neuron.
  auto place = static_cast<std::uint32_t>(row.place - args.range.first);
  for (int w = 0; row.exists && w < row.first_word; ++w) place += __popc(row.words[w]);
  row.walk([&](int neuron, std::uint32_t rows) {
    if ((rows >> lane & 1U) == 0) return;
    int at = shared.starts[neuron] + __popc(rows & ((1U << lane) - 1U));
    for (int w = 0; w < warp; ++w) at += shared.counts[neuron][w];
    args.places[at] = place++;
  });
}

}  // namespace twell::cuda
