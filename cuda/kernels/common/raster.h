// In which order the tiles of an output are walked.
#pragma once

#ifdef __CUDACC__
#define TWELL_HOST_DEVICE __host__ __device__
#else
#define TWELL_HOST_DEVICE
#endif

namespace twell::cuda {

struct Tile {
  int row = 0;
  int col = 0;
};

// Groups of `group` row tiles are walked column by column, so that the blocks that run at the same
// time share rows of x and columns of W in L2: 132 blocks in groups of 8 touch 8 + 17 tiles of the
// operands instead of 1 + 132.
constexpr TWELL_HOST_DEVICE Tile raster(int index, int row_tiles, int col_tiles, int group) {
  const int per_group = group * col_tiles;
  const int first = index / per_group * group;
  const int height = row_tiles - first < group ? row_tiles - first : group;
  const int within = index % per_group;
  return {first + within % height, within / height};
}

}  // namespace twell::cuda
