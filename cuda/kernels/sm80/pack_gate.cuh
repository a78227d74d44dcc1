// pack_gate: act(v) of a dense matrix that a library's GEMM has just written, to TwELL. A block
// takes a row, its warps 512 neighbouring columns each at a time.
//
// The matrix is read from L2, where a block of rows stays, and never again: 11 KB a row at 5,632
// neurons. Two loads of 16 bytes of each lane are in flight, the next ones while these are packed.
// Where the same GEMM gave u of the hot neurons, their h is made here, and no u is ever in memory.
#pragma once

#include "cuda/kernels/common/gate_source.cuh"
#include "cuda/kernels/common/row_queue.cuh"

namespace twell::cuda {

constexpr int kPackAhead = 2;                        // vectors of a lane
constexpr int kPackRun = kPackAhead * 32 * kVector;  // columns of a warp at a time

// Where a lane's vectors of a run lie: `column` is that of the first.
__device__ __forceinline__ int pack_column(int vector) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  return warp * kPackRun + (vector * 32 + lane) * kVector;
}

// take(first column of the lane's vectors, vectors) for the columns [first, end) of a row, g being
// rounded and zero from `end` on: all threads together, runs of all warps at a time.
template <class T, bool kWide, bool kAligned, class Take>
__device__ __forceinline__ void walk_gate(const PackGateArgs& args, std::int64_t row, int first,
                                          int end, Take take) {
  constexpr int kColumns = kPackThreads / 32 * kPackRun;
  RawVector<kWide> next[kPackAhead];
#pragma unroll
  for (int i = 0; i < kPackAhead; ++i) {
    next[i] = load_raw<kWide, kAligned>(args.gate, row, first + pack_column(i), end);
  }
#pragma unroll 1
  for (int column = first; column < end; column += kColumns) {
    uint4 g[kPackAhead];
    RawVector<kWide> raw[kPackAhead];
#pragma unroll
    for (int i = 0; i < kPackAhead; ++i) {
      raw[i] = next[i];
      next[i] = load_raw<kWide, kAligned>(args.gate, row, column + kColumns + pack_column(i), end);
    }
#pragma unroll
    for (int i = 0; i < kPackAhead; ++i) {
      g[i] = activated_vector<T, kWide>(args.gate, raw[i], column + pack_column(i), end);
    }
    take(column, g);
  }
}

// take(column, g, h) for the vectors of hot neurons, whose u the row has as well.
template <class T, bool kWide, class Take>
__device__ __forceinline__ void walk_joined(const PackGateArgs& args, std::int64_t row, Take take) {
  constexpr int kColumns = kPackThreads / 32 * kPackRun;
  const int end = args.hot_cols;
  for (int column = 0; column < end; column += kColumns) {
    RawVector<kWide> raw[kPackAhead], raw_up[kPackAhead];
#pragma unroll
    for (int i = 0; i < kPackAhead; ++i) {
      const int at = column + pack_column(i);
      raw[i] = load_raw<kWide, true>(args.gate, row, at, end);
      raw_up[i] = load_raw<kWide, true>(args.gate, row, args.up_col + at, args.up_col + end);
    }
#pragma unroll
    for (int i = 0; i < kPackAhead; ++i) {
      const int at = column + pack_column(i);
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

// What the warps of a block tell each other. Rounds take turns with two places, so that one barrier
// a round is enough.
struct PackShared {
  int sums[2][kPackThreads / 32];
};

// Σ of the warps' sums before this one, and over all. Has a barrier.
__device__ __forceinline__ LanePrefix warp_prefix(int (&sums)[kPackThreads / 32], int of_warp) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) sums[warp] = of_warp;
  __syncthreads();
  LanePrefix out = {0, 0};
#pragma unroll
  for (int w = 0; w < kPackThreads / 32; ++w) {
    if (w < warp) out.before += sums[w];
    out.total += sums[w];
  }
  return out;
}

template <class T, bool kWide, bool kAligned>
__global__ void __launch_bounds__(kPackThreads)
    pack_gate_sm80(const __grid_constant__ PackGateArgs args) {
  auto& shared = *reinterpret_cast<PackShared*>(ptx::dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t from = blockIdx.x;
  const std::int64_t row = args.first_row + from;
  int turn = 0;
  const auto sum_of_all = [&](int own) {
    turn ^= 1;
    return warp_prefix(shared.sums[turn], lane_prefix(own, lane, 32).total).total;
  };

  int hot_nnz = 0;  // of this lane
  const auto take_hot = [&](int column, const uint4& g, const uint4& h) {
    if (column >= args.hot_cols) return;
    if (args.hot != nullptr) ptx::store_16(args.hot + row * args.hot_stride + column, h);
    const std::uint32_t mask = nonzero_mask(g);
    hot_nnz += __popc(mask);
    count_neurons(args, mask, column);
  };
  bool joined = false;
  if constexpr (kAligned) {  // as every library's GEMM leaves it
    joined = args.up_col != 0;
    if (joined) walk_joined<T, kWide>(args, from, take_hot);
  }
  if (!joined) {
    walk_gate<T, kWide, kAligned>(args, from, 0, args.hot_cols,
                                  [&](int column, const uint4(&g)[kPackAhead]) {
                                    for (int i = 0; i < kPackAhead; ++i) {
                                      take_hot(column + pack_column(i), g[i], g[i]);
                                    }
                                  });
  }

  int nnz = 0;  // packed
  const DeviceTwell& out = args.out;
  for (int tile = 0; tile < out.tiles; ++tile) {
    const int first = args.hot_cols + tile * out.tile;
    const int end = min(first + out.tile, args.cols);
    const std::int64_t place = row * out.tiles + tile;
    std::uint32_t* slots = out.slots + place * out.capacity;
    if (out.capacity < end - first) {
      int own = 0;
      walk_gate<T, kWide, kAligned>(args, from, first, end, [&](int, const uint4(&g)[kPackAhead]) {
        for (const uint4& v : g) own += __popc(nonzero_mask(v));
      });
      if (sum_of_all(own) > out.capacity) {
        if (threadIdx.x == 0) slots[0] = static_cast<std::uint32_t>(place);
        slots = out.overflow + place * out.tile;
      }
    }
    int count = 0;
    walk_gate<T, kWide, kAligned>(
        args, from, first, end, [&](int column, const uint4(&g)[kPackAhead]) {
          std::uint32_t masks[kPackAhead];
          std::uint32_t own = 0;  // a half for each vector: a warp has 256 at most
#pragma unroll
          for (int i = 0; i < kPackAhead; ++i) {
            masks[i] = nonzero_mask(g[i]);
            own |= static_cast<std::uint32_t>(__popc(masks[i])) << (16 * i);
            store_fired(args.fired, row, column + pack_column(i) - first, masks[i]);
          }
          static_assert(kPackAhead == 2);
          LanePrefix lanes = {0, 0};
          if (__any_sync(0xffffffffU, own != 0)) {
            lanes = lane_prefix(static_cast<int>(own), lane, 32);
          }
          const int total[] = {lanes.total & 0xffff, lanes.total >> 16};
          turn ^= 1;
          const LanePrefix warps = warp_prefix(shared.sums[turn], total[0] + total[1]);
          const int before[] = {lanes.before & 0xffff, total[0] + (lanes.before >> 16)};
#pragma unroll
          for (int i = 0; i < kPackAhead; ++i) {
            if (masks[i] == 0) continue;
            const int at = column + pack_column(i);
            store_slots(slots + count + warps.before + before[i], g[i], masks[i],
                        static_cast<std::uint32_t>(at - first));
            count_neurons(args, masks[i], at);
          }
          count += warps.total;
        });
    if (threadIdx.x == 0) out.counts[place] = count;
    nnz += count;
  }
  if (args.row_nnz != nullptr) {
    hot_nnz = sum_of_all(hot_nnz);
    if (threadIdx.x == 0) args.row_nnz[row] = nnz + hot_nnz;
  }
  if (args.queue.items != nullptr && threadIdx.x == 0) {
    enqueue_row(args.queue, static_cast<int>(row), nnz);
  }
}

}  // namespace twell::cuda
