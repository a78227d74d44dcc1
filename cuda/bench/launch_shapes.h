// Grids of the benchmark's own kernels: pure, so that the limits of a grid are tested without a
// GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "twell/cuda.h"

namespace twell::bench {

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
};

// A grid's y ends at 65,535, so rows cannot be blocks. This many, three times for 5,632 columns,
// fill any GPU's SMs many times over, at eight blocks each.
inline constexpr std::int64_t kMostBlocksY = 4096;

// The dense layer's elementwise kernel: threads of a block share a row's vectors of eight, blocks
// along y the rows, each taking every gridDim.y-th.
inline constexpr int kElementThreads = 256;
constexpr Grid relu_times_grid(std::int64_t rows, std::int64_t neurons) {
  const std::int64_t vectors = neurons / cuda::kVector;
  return {static_cast<unsigned>((vectors + kElementThreads - 1) / kElementThreads),
          static_cast<unsigned>(std::min(rows, kMostBlocksY))};
}

}  // namespace twell::bench
