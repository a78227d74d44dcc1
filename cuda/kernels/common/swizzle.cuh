// Where a 16-byte chunk of a tile lies in shared memory.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/raster.h"
#include "cuda/kernels/shapes.h"

namespace twell::cuda {

// Rows of 64 elements are 128 bytes, all 32 banks: eight rows' chunks of one column would meet in
// the same four. The chunk number xor the row's low three bits spreads them over all, for ldmatrix
// (eight rows, one chunk) and for the copies (one row, eight chunks) alike.
constexpr int kRowChunks = kRowBytes / 16;
constexpr TWELL_HOST_DEVICE std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

}  // namespace twell::cuda
