// Between dense and packed, for inspection and tests: a thread takes a whole tile.
#pragma once

#include "kernels/cuda/kernels.h"

namespace twell::cuda {

struct TilePlace {
  std::int64_t row, place;  // place: row · tiles + tile
  int first, columns;       // of the matrix
};

// The tile of this thread; columns 0 where there is none.
__device__ __forceinline__ TilePlace own_tile(const TwellDenseArgs& args) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  TilePlace out = {place / args.twell.tiles, place, 0, 0};
  if (out.row >= args.rows) return out;
  out.first = static_cast<int>(place % args.twell.tiles) * args.twell.tile;
  out.columns = min(args.twell.tile, args.cols - out.first);
  return out;
}

__global__ void dense_to_twell_kernel(const TwellDenseArgs args) {
  const TilePlace tile = own_tile(args);
  if (tile.columns == 0) return;
  const std::uint16_t* from = args.dense + tile.row * args.stride + tile.first;
  int count = 0;
  for (int c = 0; c < tile.columns; ++c) count += (from[c] & 0x7fffU) != 0 ? 1 : 0;
  args.twell.counts[tile.place] = count;
  std::uint32_t* to = args.twell.slots + tile.place * args.twell.capacity;
  if (count > args.twell.capacity) {
    to[0] = static_cast<std::uint32_t>(tile.place);
    to = args.twell.overflow + tile.place * args.twell.tile;
  }
  for (int c = 0; c < tile.columns; ++c) {
    const std::uint32_t bits = from[c];
    if ((bits & 0x7fffU) != 0) *to++ = bits << 16 | static_cast<std::uint32_t>(c);
  }
}

__global__ void twell_to_dense_kernel(const TwellDenseArgs args) {
  const TilePlace tile = own_tile(args);
  if (tile.columns == 0) return;
  std::uint16_t* to = args.dense + tile.row * args.stride + tile.first;
  for (int c = 0; c < tile.columns; ++c) to[c] = 0;
  const int count = args.twell.counts[tile.place];
  const std::uint32_t* from = args.twell.slots + tile.place * args.twell.capacity;
  if (count > args.twell.capacity) {
    from = args.twell.overflow + static_cast<std::int64_t>(from[0]) * args.twell.tile;
  }
  for (int i = 0; i < count; ++i) {
    to[from[i] & 0xffffU] = static_cast<std::uint16_t>(from[i] >> 16);
  }
}

}  // namespace twell::cuda
