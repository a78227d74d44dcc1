// pack_gate: act(v) of a dense matrix that a library's GEMM has just written, to TwELL. A warp
// takes a row, 256 columns at a time.
//
// The matrix is read from L2, where a block of rows stays, and never again: 11 KB a row at 5,632
// neurons. Four loads of 16 bytes are in flight per lane.
#pragma once

#include "kernels/cuda/common/gate_source.cuh"
#include "kernels/cuda/common/row_queue.cuh"

namespace twell::cuda {

// take(column, vector) for the columns [first, end) of a row: all lanes together, 256 columns at a
// time, vectors past the end being zero.
template <class T, bool kWide, bool kAligned, class Take>
__device__ __forceinline__ void walk_gate(const PackGateArgs& args, std::int64_t row, int first,
                                          int end, Take take) {
  constexpr int kAhead = kWide ? 2 : 4;
  constexpr int kColumns = 32 * kVector;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int column = first; column < end; column += kAhead * kColumns) {
    uint4 v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      v[i] = load_gate<T, kWide, kAligned>(args.gate, row, column + i * kColumns + lane * kVector,
                                           end);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) take(column + i * kColumns + lane * kVector, v[i]);
  }
}

__device__ __forceinline__ void count_neurons(const PackGateArgs& args, std::uint32_t mask,
                                              int column) {
  if (args.neuron_counts == nullptr) return;
  for (int i = 0; i < kVector; ++i) {
    if ((mask >> i & 1U) != 0) atomicAdd(args.neuron_counts + column + i, 1ULL);
  }
}

// Eight bits from `column` on, a multiple of 8.
__device__ __forceinline__ void store_fired(const FiredBits& fired, std::int64_t row, int column,
                                            std::uint32_t mask) {
  if (fired.words == nullptr || column >= fired.stride * 32) return;
  auto* bytes = reinterpret_cast<std::uint8_t*>(fired.words + row * fired.stride);
  bytes[column / 8] = static_cast<std::uint8_t>(mask);
}

template <class T, bool kWide, bool kAligned>
__global__ void __launch_bounds__(kPackThreads)
    pack_gate_sm80(const __grid_constant__ PackGateArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t from =
      static_cast<std::int64_t>(blockIdx.x) * (kPackThreads / 32) + threadIdx.x / 32;
  if (from >= args.rows) return;
  const std::int64_t row = args.first_row + from;

  int hot_nnz = 0;  // of this lane
  walk_gate<T, kWide, kAligned>(args, from, 0, args.hot_cols, [&](int column, const uint4& v) {
    if (column >= args.hot_cols) return;
    if (args.hot != nullptr) ptx::store_16(args.hot + row * args.hot_stride + column, v);
    const std::uint32_t mask = nonzero_mask(v);
    hot_nnz += __popc(mask);
    count_neurons(args, mask, column);
  });

  int nnz = 0;  // packed
  const DeviceTwell& out = args.out;
  for (int tile = 0; tile < out.tiles; ++tile) {
    const int first = args.hot_cols + tile * out.tile;
    const int end = min(first + out.tile, args.cols);
    const std::int64_t place = row * out.tiles + tile;
    std::uint32_t* slots = out.slots + place * out.capacity;
    if (out.capacity < end - first) {
      int own = 0;
      walk_gate<T, kWide, kAligned>(args, from, first, end,
                                    [&](int, const uint4& v) { own += __popc(nonzero_mask(v)); });
      if (lane_prefix(own, lane, 32).total > out.capacity) {
        if (lane == 0) slots[0] = static_cast<std::uint32_t>(place);
        slots = out.overflow + place * out.tile;
      }
    }
    int count = 0;
    walk_gate<T, kWide, kAligned>(args, from, first, end, [&](int column, const uint4& v) {
      const std::uint32_t mask = nonzero_mask(v);
      store_fired(args.fired, row, column - first, mask);
      if (!__any_sync(0xffffffffU, mask != 0)) return;
      const LanePrefix prefix = lane_prefix(__popc(mask), lane, 32);
      store_slots(slots + count + prefix.before, v, mask,
                  static_cast<std::uint32_t>(column - first));
      count_neurons(args, mask, column);
      count += prefix.total;
    });
    if (lane == 0) out.counts[place] = count;
    nnz += count;
  }
  if (args.row_nnz != nullptr) {
    hot_nnz = lane_prefix(hot_nnz, lane, 32).total;
    if (lane == 0) args.row_nnz[row] = nnz + hot_nnz;
  }
  if (args.queue.items != nullptr && lane == 0) {
    enqueue_row(args.queue, static_cast<int>(row), nnz);
  }
}

}  // namespace twell::cuda
