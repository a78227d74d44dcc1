// From packed to dense, for inspection and tests: a thread takes a whole tile.
#pragma once

#include "cuda/kernels/kernels.h"

namespace twell::cuda {

__global__ void twell_to_dense_kernel(const TwellToDenseArgs args) {
  const DeviceTwell& twell = args.twell;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = place / twell.tiles;
  if (row >= args.rows) return;
  const int first = static_cast<int>(place % twell.tiles) * twell.tile;
  const int columns = min(twell.tile, args.cols - first);
  std::uint16_t* to = args.dense + row * args.stride + first;
  for (int c = 0; c < columns; ++c) to[c] = 0;
  const int count = twell.counts[place];
  const std::uint32_t* from = twell.slots + place * twell.capacity;
  if (count > twell.capacity) {
    from = twell.overflow + static_cast<std::int64_t>(from[0]) * twell.tile;
  }
  for (int i = 0; i < count; ++i) {
    to[from[i] & 0xffffU] = static_cast<std::uint16_t>(from[i] >> 16);
  }
}

}  // namespace twell::cuda
