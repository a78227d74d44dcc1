// pack_gate: act(v) of a dense matrix that a library's GEMM has just written, to TwELL. A warp
// takes a row, 256 columns at a time.
//
// The matrix is read from L2, where a block of rows stays, and never again: 11 KB a row at 5,632
// neurons. Four loads of 16 bytes are in flight per lane. Where the same GEMM gave u of the hot
// neurons, their h is made here, and no u is ever in memory.
#pragma once

#include "cuda/kernels/common/gate_source.cuh"
#include "cuda/kernels/common/row_queue.cuh"

namespace twell::cuda {

// take(column, vector) for the columns [first, end) of a row, g being rounded: all lanes together,
// 256 columns at a time, vectors past the end being zero.
template <class T, bool kWide, bool kAligned, class Take>
__device__ __forceinline__ void walk_gate(const PackGateArgs& args, std::int64_t row, int first,
                                          int end, Take take) {
  constexpr int kAhead = kWide || !kAligned ? 2 : 4;
  constexpr int kColumns = 32 * kVector;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int column = first + lane * kVector; column - lane * kVector < end;
       column += kAhead * kColumns) {
    RawVector<kWide> raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      raw[i] = load_raw<kWide, kAligned>(args.gate, row, column + i * kColumns, end);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = column + i * kColumns;
      take(at, activated_vector<T, kWide>(args.gate, raw[i], at, end));
    }
  }
}

// take(column, g, h) for the hot neurons, whose u the row has as well.
template <class T, bool kWide, class Take>
__device__ __forceinline__ void walk_joined(const PackGateArgs& args, std::int64_t row, Take take) {
  constexpr int kAhead = kWide ? 1 : 2;
  constexpr int kColumns = 32 * kVector;
  const int end = args.hot_cols;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int column = lane * kVector; column < end; column += kAhead * kColumns) {
    RawVector<kWide> raw[kAhead], raw_up[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = column + i * kColumns;
      raw[i] = load_raw<kWide, true>(args.gate, row, at, end);
      raw_up[i] = load_raw<kWide, true>(args.gate, row, args.up_col + at, args.up_col + end);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = column + i * kColumns;
      float u[kVector];
      widen<T, kWide>(raw_up[i], u);
      const uint4 g = activated_vector<T, kWide>(args.gate, raw[i], at, end);
      take(at, g, masked_hidden<T>(g, u));
    }
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
  const auto take_hot = [&](int column, const uint4& g, const uint4& h) {
    if (column >= args.hot_cols) return;
    if (args.hot != nullptr) ptx::store_16(args.hot + row * args.hot_stride + column, h);
    const std::uint32_t mask = nonzero_mask(g);
    hot_nnz += __popc(mask);
    count_neurons(args, mask, column);
  };
  const auto take_gate = [&](int column, const uint4& g) { take_hot(column, g, g); };
  bool joined = false;
  if constexpr (kAligned) {  // as every library's GEMM leaves it
    joined = args.up_col != 0;
    if (joined) walk_joined<T, kWide>(args, from, take_hot);
  }
  if (!joined) walk_gate<T, kWide, kAligned>(args, from, 0, args.hot_cols, take_gate);

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
