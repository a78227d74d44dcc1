// backward_neurons: dWg[n] = Σ dv x, dWu[n] = Σ du x, dWd[n] = Σ h dy over the rows that fired
// neuron n.
//
// A warp takes a neuron, or a chunk of its rows, and 512 columns, with four rows of x and dy in
// flight: 16 loads of 16 bytes. All neurons of one group of columns come before those of the next,
// so that the group's columns of x and dy stay in L2: 33 MB at 16,384 rows.
#pragma once

#include "cuda/kernels/common/queue_sums.cuh"
#include "cuda/kernels/train_kernels.h"

namespace twell::cuda {

// A warp's sums of three rows of 512 columns: a lane has two vectors of eight of each.
class WarpSums {
 public:
  static constexpr int kVectors = kGradientColumns / (32 * kVector);

  __device__ __forceinline__ explicit WarpSums(int first_column)
      : column_(first_column + lane() * kVector) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) gate[i] = up[i] = down[i] = 0;
  }
  // 16 bytes of each lane in turn.
  __device__ __forceinline__ void store_partial(float* to) const {
    store(to, gate);
    store(to + kGradientColumns, up);
    store(to + 2 * kGradientColumns, down);
  }
  __device__ __forceinline__ void add_partial(const float* from) {
    add(from, gate);
    add(from + kGradientColumns, up);
    add(from + 2 * kGradientColumns, down);
  }
  // Of a lane's vector.
  __device__ __forceinline__ int column(int vector) const {
    return column_ + vector * 32 * kVector;
  }

  static constexpr int kFloats = kVectors * kVector;  // of a lane
  float gate[kFloats], up[kFloats], down[kFloats];

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ void store(float* to, const float (&sums)[kFloats]) {
#pragma unroll
    for (int i = 0; i < kFloats; i += 4) {
      ptx::store_f4(to + i * 32 + lane() * 4,
                    make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    }
  }
  static __device__ __forceinline__ void add(const float* from, float (&sums)[kFloats]) {
#pragma unroll
    for (int i = 0; i < kFloats; i += 4) {
      const float4 v = ptx::load_other_block_f4(from + i * 32 + lane() * 4);
      sums[i] += v.x;
      sums[i + 1] += v.y;
      sums[i + 2] += v.z;
      sums[i + 3] += v.w;
    }
  }

  int column_;
};

// A chunk of a neuron's places. A lane fetches the gradients of every 32nd and passes them round.
template <class T, bool kGated, bool kAligned>
__device__ __forceinline__ void add_places(WarpSums& sums, const std::uint32_t* places, int count,
                                           const BackwardNeuronsArgs& args) {
  constexpr int kRows = kAligned ? 4 : 1;  // in flight
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 32) {
    PlaceGradient own = {0, 0, 0, 0};
    if (begin + lane < count) own = args.gradients[places[begin + lane]];
    const int end = min(32, count - begin);
#pragma unroll 1
    for (int i = 0; i < end; i += kRows) {
      uint4 x[kRows][WarpSums::kVectors];
      uint4 dy[kRows][WarpSums::kVectors];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t row = __shfl_sync(0xffffffffU, own.row, min(i + r, end - 1));
#pragma unroll
        for (int v = 0; v < WarpSums::kVectors; ++v) {
          x[r][v] = load_row_vector<kAligned>(args.x.data + row * args.x.stride, sums.column(v),
                                              args.depth);
          dy[r][v] = load_row_vector<kAligned>(args.dy.data + row * args.dy.stride, sums.column(v),
                                               args.depth);
        }
      }
      // Never true: never() in common/gather.cuh.
      if constexpr (kAligned) {
        if (__any_sync(0xffffffffU, own.row < 0)) return;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int source = min(i + r, end - 1);
        const float h = __shfl_sync(0xffffffffU, own.h, source);
        const float dv = __shfl_sync(0xffffffffU, own.dv, source);
        const float du = kGated ? __shfl_sync(0xffffffffU, own.du, source) : 0.0F;
        if (i + r >= end) break;
#pragma unroll
        for (int v = 0; v < WarpSums::kVectors; ++v) {
          float inputs[kVector];
          widen<T>(x[r][v], inputs);
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const int at = v * kVector + k;
            sums.gate[at] = fmaf(dv, inputs[k], sums.gate[at]);
            if constexpr (kGated) sums.up[at] = fmaf(du, inputs[k], sums.up[at]);
          }
          widen<T>(dy[r][v], inputs);
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const int at = v * kVector + k;
            sums.down[at] = fmaf(h, inputs[k], sums.down[at]);
          }
        }
      }
    }
  }
}

// Eight neighbouring sums into a row of a gradient.
template <class T, bool kWide, bool kAligned>
__device__ __forceinline__ void store_gradient(const WeightGradient& to, std::int64_t row,
                                               int column, int depth, bool adds,
                                               const float* sums) {
  const std::int64_t at = row * to.stride + column;
  if constexpr (kWide) {
    float* out = static_cast<float*>(to.data) + at;
    if constexpr (kAligned) {
      if (column >= depth) return;
#pragma unroll
      for (int i = 0; i < kVector; i += 4) {
        float4 v = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        if (adds) {
          const float4 old = *reinterpret_cast<const float4*>(out + i);
          v = make_float4(old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w);
        }
        ptx::store_f4(out + i, v);
      }
    } else {
      for (int i = 0; i < min(kVector, depth - column); ++i) {
        out[i] = adds ? out[i] + sums[i] : sums[i];
      }
    }
  } else {
    auto* out = static_cast<std::uint16_t*>(to.data) + at;
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      if (column + i >= depth) break;
      const bool pair = column + i + 1 < depth;
      float low = sums[i];
      float high = sums[i + 1];
      if (adds) {
        low += T::low(out[i]);
        if (pair) high += T::low(out[i + 1]);
      }
      const std::uint32_t word = T::round2(low, high);
      if constexpr (kAligned) {
        *reinterpret_cast<std::uint32_t*>(out + i) = word;
      } else {
        out[i] = static_cast<std::uint16_t>(word);
        if (pair) out[i + 1] = static_cast<std::uint16_t>(word >> 16);
      }
    }
  }
}

// Grid: blocks × groups of columns (y).
template <class T, bool kGated, bool kWide, bool kAligned>
__global__ void __launch_bounds__(kGradientThreads, kAligned ? kGradientBlocks : 2)
    backward_neurons_sm80(const __grid_constant__ BackwardNeuronsArgs args) {
  const int group = static_cast<int>(blockIdx.y);
  WarpSums sums(group * kGradientColumns);
  WarpTeam team(args.queue, group);
  sum_rows(
      team, sums, args.queue,
      PartialSums{args.partial, kGradientFloats, group, static_cast<int>(gridDim.y)},
      [&](int neuron) { return args.starts[neuron + 1] - args.starts[neuron]; },
      [&](const Chunk& chunk) {
        add_places<T, kGated, kAligned>(sums, args.places + args.starts[chunk.row] + chunk.begin,
                                        chunk.count, args);
      },
      [](int) {},
      [&](int neuron, int, int) {
        if (args.adds && args.starts[neuron + 1] == args.starts[neuron]) return;
#pragma unroll
        for (int v = 0; v < WarpSums::kVectors; ++v) {
          const int column = sums.column(v);
          const int at = v * kVector;
          store_gradient<T, kWide, kAligned>(args.gate, neuron, column, args.depth, args.adds,
                                             sums.gate + at);
          if constexpr (kGated) {
            store_gradient<T, kWide, kAligned>(args.up, neuron, column, args.depth, args.adds,
                                               sums.up + at);
          }
          store_gradient<T, kWide, kAligned>(args.down, neuron, column, args.depth, args.adds,
                                             sums.down + at);
        }
      });
}

}  // namespace twell::cuda
