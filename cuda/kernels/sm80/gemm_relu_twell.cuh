// gemm_relu_twell on mma.sync: a block computes kBlockRows × kBlockCols of act(x Wᵀ) and packs it.
//
// x and W are both K-major as they lie in checkpoints, which is what the fragments of both operands
// want (row.col), so nothing is transposed. Accumulators never leave registers before they are
// activated and rounded; the rounded block is staged in the pipeline's shared memory, free by then,
// where each row is read in column order and packed.
#pragma once

#include "cuda/kernels/common/pack_epilogue.cuh"
#include "cuda/kernels/common/pipeline.cuh"
#include "cuda/kernels/common/raster.h"
#include "cuda/kernels/ptx/grid.cuh"

namespace twell::cuda {

// One stage's products of one warp.
template <class T, class Tiles>
class WarpProduct {
 public:
  static constexpr int kRowFragments = Tiles::kWarpRows / 16;
  static constexpr int kColFragments = Tiles::kWarpCols / 8;
  float c[kRowFragments][kColFragments][4] = {};

  __device__ __forceinline__ WarpProduct() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    row_ = warp / Tiles::kWarpsAcross * Tiles::kWarpRows;
    col_ = warp % Tiles::kWarpsAcross * Tiles::kWarpCols;
  }

  // x and w: the stage's shared addresses.
  __device__ __forceinline__ void add(std::uint32_t x, std::uint32_t w) {
    // Fragments of the next 16 inputs are read while the tensor cores work on these.
    std::uint32_t a[2][kRowFragments][4];
    std::uint32_t b[2][kColFragments / 2][4];
    read(x, w, 0, a[0], b[0]);
#pragma unroll
    for (int k = 0; k < kStageDepth / 16; ++k) {
      if (k + 1 < kStageDepth / 16) read(x, w, k + 1, a[(k + 1) % 2], b[(k + 1) % 2]);
#pragma unroll
      for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kColFragments; ++j) {
          const auto& pair = b[k % 2][j / 2];
          T::mma(c[i][j], a[k % 2][i], pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
        }
      }
    }
  }

  // Row and column, within the block, of c[i][j][0]; c[i][j][2] is eight rows below.
  __device__ __forceinline__ int row(int i) const { return row_ + i * 16 + lane() / 4; }
  __device__ __forceinline__ int col(int j) const { return col_ + j * 8 + lane() % 4 * 2; }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ void read(std::uint32_t x, std::uint32_t w, int k,
                                       std::uint32_t (&a)[kRowFragments][4],
                                       std::uint32_t (&b)[kColFragments / 2][4]) const {
    // Matrices of a: rows 0-7, rows 8-15, then both at the next eight inputs.
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) {
      ptx::ldmatrix_x4(a[i], x + swizzled(row_ + i * 16 + lane() % 16, 2 * k + lane() / 16));
    }
    // Matrices of b: inputs 0-7 and 8-15 of neurons 0-7, then of neurons 8-15.
#pragma unroll
    for (int j = 0; j < kColFragments / 2; ++j) {
      const int neuron = col_ + j * 16 + lane() % 8 + lane() / 16 * 8;
      ptx::ldmatrix_x4(b[j], w + swizzled(neuron, 2 * k + lane() / 8 % 2));
    }
  }

  int row_;
  int col_;
};

template <class T, class Tiles, bool kAligned>
__global__ void __launch_bounds__(Tiles::kThreads)
    gemm_relu_twell_sm80(const __grid_constant__ GemmReluTwellArgs args) {
  const int row_tiles = (args.rows + Tiles::kBlockRows - 1) / Tiles::kBlockRows;
  const int col_tiles = (args.cols + Tiles::kBlockCols - 1) / Tiles::kBlockCols;
  const Tile tile = raster(static_cast<int>(blockIdx.x), row_tiles, col_tiles, args.raster_group);
  const int first_row = tile.row * Tiles::kBlockRows;
  const int first_col = tile.col * Tiles::kBlockCols;
  clear_words<Tiles::kThreads>(args.cleared, args.cleared_words);
  ptx::launch_dependents();

  const TileLoader<Tiles::kBlockRows, Tiles::kThreads, kAligned> x(args.x, first_row, args.rows,
                                                                   args.depth);
  const TileLoader<Tiles::kBlockCols, Tiles::kThreads, kAligned> w(args.weight, first_col,
                                                                   args.cols, args.depth);
  std::byte* shared = ptx::dynamic_shared();
  const std::uint32_t stages = ptx::shared_address(shared);
  constexpr std::uint32_t kStageBytes = Tiles::kStageBytes;
  constexpr std::uint32_t kXBytes = Tiles::kBlockRows * kRowBytes;
  WarpProduct<T, Tiles> product;
  run_pipeline<Tiles::kStages>(
      args.depth,
      [&](int stage, int k) {
        const std::uint32_t at = stages + static_cast<std::uint32_t>(stage) * kStageBytes;
        x.load(at, k);
        w.load(at + kXBytes, k);
      },
      [&](int stage) {
        const std::uint32_t at = stages + static_cast<std::uint32_t>(stage) * kStageBytes;
        product.add(at, at + kXBytes);
      });

  auto* staged = reinterpret_cast<std::uint16_t*>(shared);
#pragma unroll
  for (int i = 0; i < product.kRowFragments; ++i) {
#pragma unroll
    for (int j = 0; j < product.kColFragments; ++j) {
      const int col = product.col(j);
      const bool first = first_col + col < args.cols;
      const bool second = first_col + col + 1 < args.cols;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair =
            T::round2(activate(product.c[i][j][2 * half], first, args.activation),
                      activate(product.c[i][j][2 * half + 1], second, args.activation));
        const int row = product.row(i) + 8 * half;
        *reinterpret_cast<std::uint32_t*>(staged + row * Tiles::kStagedStride + col) = pair;
      }
    }
  }
  __syncthreads();
  const int rows =
      args.rows - first_row < Tiles::kBlockRows ? args.rows - first_row : Tiles::kBlockRows;
  pack_rows<Tiles::kBlockCols, Tiles::kStagedStride, Tiles::kThreads>(staged, rows, first_row,
                                                                      first_col, args.out);
}

}  // namespace twell::cuda
