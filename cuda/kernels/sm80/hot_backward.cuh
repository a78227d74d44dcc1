// hot_backward: h, dv and du of the neurons that are multiplied densely, 0 wherever g is;
// absolute_sums: Σ |h| of their rows.
#pragma once

#include "cuda/kernels/sm80/backward_rows.cuh"

namespace twell::cuda {

// A thread takes eight neighbouring elements at a time; rows are padded to whole vectors, of zeros.
template <class T, bool kGated>
__global__ void __launch_bounds__(kProductThreads)
    hot_backward_sm80(const __grid_constant__ HotBackwardArgs args) {
  const int vectors = (args.cols + kVector - 1) / kVector;
  const std::int64_t all = static_cast<std::int64_t>(args.rows) * vectors;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const float l1 = args.l1 == nullptr ? 0.0F : *args.l1;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += step) {
    const std::int64_t row = i / vectors;
    const int column = static_cast<int>(i % vectors) * kVector;
    const auto load = [&](const std::uint16_t* from) {
      return ptx::load_stream(from + row * args.stride + column);
    };
    const uint4 g4 = load(args.g);
    const uint4 dh4 = load(args.dh);
    const uint4 u4 = kGated ? load(args.u) : g4;
    const std::uint32_t g[4] = {g4.x, g4.y, g4.z, g4.w};
    const std::uint32_t u[4] = {u4.x, u4.y, u4.z, u4.w};
    const std::uint32_t dh[4] = {dh4.x, dh4.y, dh4.z, dh4.w};
    // By hand: eight widened values of each would take 54 registers instead of 40 in f16.
    std::uint32_t h[4], dv[4], du[4];
    const auto gradient = [&](bool fired, float g1, float u1, float dh1) {
      if (!fired) return PlaceGradient{0, 0, 0, 0};
      return gradient_of(g1, kGated ? u1 : 1.0F, dh1, l1, args.activation.kind);
    };
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = column + 2 * k;
      const PlaceGradient low = gradient((g[k] & 0x7fffU) != 0 && at < args.cols, T::low(g[k]),
                                         T::low(u[k]), T::low(dh[k]));
      const PlaceGradient high = gradient((g[k] & 0x7fff0000U) != 0 && at + 1 < args.cols,
                                          T::high(g[k]), T::high(u[k]), T::high(dh[k]));
      h[k] = T::round2(low.h, high.h);
      dv[k] = T::round2(low.dv, high.dv);
      du[k] = T::round2(low.du, high.du);
    }
    const std::int64_t at = row * args.dv_stride + column;
    ptx::store_16(args.h + row * args.stride + column, make_uint4(h[0], h[1], h[2], h[3]));
    ptx::store_16(args.dv + at, make_uint4(dv[0], dv[1], dv[2], dv[3]));
    if constexpr (kGated) ptx::store_16(args.du + at, make_uint4(du[0], du[1], du[2], du[3]));
  }
}

// A warp for each row.
template <class T>
__global__ void __launch_bounds__(kProductThreads)
    absolute_sums_sm80(const __grid_constant__ AbsoluteSumsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kProductThreads / 32) + threadIdx.x / 32;
  if (row >= args.rows) return;
  float own = 0;
  for (int column = lane * kVector; column < args.cols; column += 32 * kVector) {
    float h[kVector];
    widen<T>(ptx::load_stream(args.h + row * args.stride + column), h);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (column + i < args.cols) own += fabsf(h[i]);
    }
  }
  own = sum_of_warp(own);
  if (lane == 0) args.sums[row] = own;
}

}  // namespace twell::cuda
