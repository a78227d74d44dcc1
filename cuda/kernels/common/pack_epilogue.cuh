// The packing epilogue: rounded activations staged in shared memory, to TwELL.
#pragma once

#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// act(v), before rounding. `exists` is false for the columns that pad the last tile: x may hold
// infinities, whose product with the padding's zeros is NaN.
__device__ __forceinline__ float activate(float v, bool exists, const ActivationArgs& activation) {
  const bool kept = exists && !(v <= activation.kept_above);
  return kept ? activated(activation.kind, v) : 0.0F;
}

// Bit i: element i of the vector is no zero of either sign.
__device__ __forceinline__ std::uint32_t nonzero_mask(const uint4& v) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  std::uint32_t mask = 0;
  if ((v.x | v.y | v.z | v.w) == 0) return mask;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Not as a choice of 1 or 2 shifted by 2i: g++ 12 compiles that wrongly under ubsan.
    mask |= static_cast<std::uint32_t>((words[i] & 0x7fffU) != 0) << (2 * i);
    mask |= static_cast<std::uint32_t>((words[i] & 0x7fff0000U) != 0) << (2 * i + 1);
  }
  return mask;
}

// Sum of `own` over the lanes of a group of `lanes` before this one, and over all of the group.
struct LanePrefix {
  int before, total;
};
__device__ __forceinline__ LanePrefix lane_prefix(int own, int lane_in_group, int lanes) {
  int sum = own;
  for (int distance = 1; distance < lanes; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, sum, distance, lanes);
    if (lane_in_group >= distance) sum += other;
  }
  return {sum - own, __shfl_sync(0xffffffffU, sum, lanes - 1, lanes)};
}

// The vector's non-zeros as slots; its first element is `column` of the tile.
__device__ __forceinline__ void store_slots(std::uint32_t* slots, const uint4& v,
                                            std::uint32_t mask, std::uint32_t column) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if ((mask >> i & 1U) != 0) {
      const std::uint32_t bits = i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U;
      *slots++ = bits | (column + static_cast<std::uint32_t>(i));
    }
  }
}

// Rows [0, rows) of a staged block of `kCols` columns, `kStride` elements apart, whose first
// element is (first_row, first_col) of the activation; elements past the matrix's columns are zero.
//
// A lane takes eight neighbouring columns, so that lanes ascend as columns do and a prefix sum over
// the lanes of a tile gives every non-zero its place. A row's tile is 2 … 32 lanes.
template <int kCols, int kStride, int kThreads>
__device__ __forceinline__ void pack_rows(const std::uint16_t* staged, int rows, int first_row,
                                          int first_col, const DeviceTwell& out) {
  constexpr int kLanesPerRow = kCols / kVector;
  constexpr int kRowsPerPass = 32 / kLanesPerRow;
  static_assert(kLanesPerRow <= 32 && kStride % kVector == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int col = lane % kLanesPerRow * kVector;
  const int lanes = out.tile / kVector;  // of one tile
  const int lane_in_tile = lane % lanes;
  const int tile = (first_col + col) / out.tile;
  const std::uint32_t column = static_cast<std::uint32_t>((first_col + col) % out.tile);
  // All lanes stay for the shuffles; those without a row or tile have no non-zeros and store
  // nothing.
  for (int r = warp * kRowsPerPass; r < rows; r += kThreads / 32 * kRowsPerPass) {
    const int row = r + lane / kLanesPerRow;
    const bool exists = row < rows && tile < out.tiles;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (exists) v = *reinterpret_cast<const uint4*>(staged + row * kStride + col);
    const std::uint32_t mask = nonzero_mask(v);
    LanePrefix place_in_tile = {0, 0};
    // At 99 % zeros a quarter of the tiles of 256 hold nothing.
    if (__any_sync(0xffffffffU, mask != 0)) {
      place_in_tile = lane_prefix(__popc(mask), lane_in_tile, lanes);
    }
    const int count = place_in_tile.total;
    if (!exists) continue;
    const std::int64_t place = static_cast<std::int64_t>(first_row + row) * out.tiles + tile;
    if (lane_in_tile == 0) out.counts[place] = count;
    if (count == 0) continue;
    std::uint32_t* slots = out.slots + place * out.capacity;
    if (count > out.capacity) {
      if (lane_in_tile == 0) slots[0] = static_cast<std::uint32_t>(place);
      slots = out.overflow + place * out.tile;
    }
    store_slots(slots + place_in_tile.before, v, mask, column);
  }
}

// Sets the counters of the kernel that follows on the stream.
template <int kThreads>
__device__ __forceinline__ void clear_words(std::uint32_t* words, int count) {
  if (blockIdx.x != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) words[i] = 0;
}

}  // namespace twell::cuda
