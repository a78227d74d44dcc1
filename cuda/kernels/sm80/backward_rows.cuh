// backward_rows: where the gate fired, dh = dy · Wd[n] + λ sign(h), du = dh g, dv = dh u act'(v),
// and dx = sums + Σ dv Wg[n] + du Wu[n]. h, dv and du go to backward_neurons.
//
// As gather_rows: rows in chunks off a queue. Where the forward pass had no room to keep g and u
// they are computed again, by dot products at the places that fired.
#pragma once

#include "cuda/kernels/common/active_list.cuh"
#include "cuda/kernels/common/queue_sums.cuh"
#include "cuda/kernels/train_kernels.h"

namespace twell::cuda {

// 0 of 0, NaN of NaN.
__device__ __forceinline__ float sign_of(float v) {
  if (v > 0) return 1;
  if (v < 0) return -1;
  return v;
}

// The gradients of a place; `dot` is dy · Wd[n].
__device__ __forceinline__ PlaceGradient gradient_of(float g, float u, float dot, float l1,
                                                     Activation kind) {
  const float h = combine(kPlainUp, g, u);
  const float dh = l1 == 0 ? dot : fmaf(l1, sign_of(h), dot);
  const PlaceGradients<float> to = uncombine(kPlainUp, dh, g, slope_by_value(kind, g), u);
  return {h, to.v, to.u, 0};
}

template <class T>
__device__ __forceinline__ float rounded(float v) {
  return T::low(T::round2(v, 0.0F));
}

// list.kept and list.values of a window whose places the forward pass did not keep.
template <class T, bool kGated, bool kAligned>
__device__ __forceinline__ void recompute_window(ActiveList& list, int count,
                                                 const std::uint16_t* x,
                                                 const BackwardRowsArgs& args) {
  for (int weight = 0; weight < (kGated ? 2 : 1); ++weight) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      list.values[i] = 1;
    }
    dot_products<T, kAligned>(list, count, x, weight == 0 ? args.gate : args.up, args.depth);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      const float v = list.values[i];
      if (weight == 0) {
        list.kept.g[i] = rounded<T>(activated(args.activation.kind, v));
      } else {
        list.kept.u[i] = rounded<T>(v);
      }
    }
  }
}

// A chunk of a row: its places' gradients, and what they add to dx.
template <class T, bool kGated, bool kAligned>
__device__ __forceinline__ void backward_window(ActiveList& list, BlockSums& sums,
                                                const Chunk& chunk, bool writes,
                                                const BackwardRowsArgs& args) {
  const std::int64_t row = chunk.row;
  const std::int64_t first = args.offsets[row] + chunk.begin;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  list_fired(list, args.fired.words + row * args.fired.stride, args.fired.stride, chunk.begin,
             chunk.count);
  if (first + chunk.count <= args.kept) {
    for (int i = thread; i < chunk.count; i += threads) {
      const std::uint32_t word = args.values[first + i];
      list.kept.g[i] = T::low(word);
      list.kept.u[i] = T::high(word);
    }
  } else {
    recompute_window<T, kGated, kAligned>(list, chunk.count, args.x.data + row * args.x.stride,
                                          args);
  }
  for (int i = thread; i < chunk.count; i += threads) list.values[i] = 1;
  dot_products<T, kAligned>(list, chunk.count, args.dy.data + row * args.dy.stride, args.down,
                            args.depth);
  __syncthreads();
  const float l1 = args.l1 == nullptr ? 0.0F : *args.l1;
  for (int i = thread; i < chunk.count; i += threads) {
    PlaceGradient place = gradient_of(list.kept.g[i], kGated ? list.kept.u[i] : 1.0F,
                                      list.values[i], l1, args.activation.kind);
    place.row = chunk.row;
    if (writes) args.gradients[first - args.range.first + i] = place;
    list.values[i] = place.dv;
    list.dots[i] = place.du;
  }
  __syncthreads();
  sums.template add<T, kAligned>(list, chunk.count, args.gate);
  __syncthreads();
  if constexpr (kGated) {
    for (int i = thread; i < chunk.count; i += threads) list.values[i] = list.dots[i];
    __syncthreads();
    sums.template add<T, kAligned>(list, chunk.count, args.up);
    __syncthreads();
  }
}

// Grid: blocks × groups of columns (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads, kGatherBlocks)
    backward_rows_sm80(const __grid_constant__ BackwardRowsArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  const int group = static_cast<int>(blockIdx.y);
  BlockSums sums(group * kGatherColumns, args.depth);
  BlockTeam team(list, args.queue, group);
  sum_rows(
      team, sums, args.queue,
      PartialSums{args.partial, BlockSums::floats(args.depth), group, static_cast<int>(gridDim.y)},
      [&](int row) { return static_cast<int>(args.offsets[row + 1] - args.offsets[row]); },
      [&](const Chunk& chunk) {
        backward_window<T, kGated, kAligned>(list, sums, chunk, group == 0, args);
      },
      [&](int row) {
        if (args.sums != nullptr) sums.add_row(args.sums + row * args.sums_stride);
      },
      [&](int row, int, int) { sums.template store<T, kAligned>(args.dx + row * args.dx_stride); });
}

}  // namespace twell::cuda
