// The shapes the kernels are built in, as plain constants: what plans choose from and kernels are
// compiled for.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "twell/cuda.h"

namespace twell::cuda {

constexpr int kRowBytes = 128;              // of a tile's row in shared memory: all 32 banks
constexpr int kStageDepth = kRowBytes / 2;  // inputs of one pipeline stage

// gemm_relu_twell through shared memory.
template <int kBlockRows_, int kBlockCols_, int kWarpRows_, int kWarpCols_, int kStages_>
struct GemmTiles {
  static constexpr int kBlockRows = kBlockRows_;
  static constexpr int kBlockCols = kBlockCols_;
  static constexpr int kWarpRows = kWarpRows_;  // of the output that one warp computes
  static constexpr int kWarpCols = kWarpCols_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpsAcross = kBlockCols / kWarpCols;
  static constexpr int kThreads = kBlockRows / kWarpRows * kWarpsAcross * 32;
  static constexpr int kStageBytes = (kBlockRows + kBlockCols) * kRowBytes;
  // 16 bytes of padding turn eight rows' pairs of columns into 32 different banks.
  static constexpr int kStagedStride = kBlockCols + kVector;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kBlockRows * kStagedStride * 2 <= kSharedBytes);
  static_assert(kWarpRows % 16 == 0 && kWarpCols % 16 == 0);
};
//                           block      warp     stages
using Tile64x64 = GemmTiles<64, 64, 32, 32, 4>;  // 64 KiB: three blocks an SM of Hopper, one of Ada
using Tile128x128 = GemmTiles<128, 128, 64, 64, 3>;  // 96 KiB: fits every GPU from sm_80 on

// gemm_relu_twell that streams W, for up to kTokens rows, a multiple of 8.
template <int kTokens_, int kNeurons_, int kRunInputs_, int kBlocks_>
struct StreamTiles {
  static constexpr int kTokens = kTokens_;
  static constexpr int kNeurons = kNeurons_;
  static constexpr int kBlocks = kBlocks_;  // of an SM
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  // Of one warp at a time: 16 loads of W in flight per lane, 8 where x takes the registers, and
  // those of x.
  static constexpr int kRunInputs = kRunInputs_;
  static constexpr int kSumStride = kNeurons + 1;  // spreads a token's neurons over banks
  static constexpr int kStagedStride = kNeurons + kVector;
  static constexpr int kSumBytes = kWarps * kTokens * kSumStride * 4;
  static constexpr int kSharedBytes = kSumBytes + kTokens * kStagedStride * 2;
};
// Sixteen neurons a block spread more evenly over the SMs of an H100, 12.6 µs instead of 14.3 at
// one token; with more tokens every block reads more of x.
using Stream8x16 = StreamTiles<8, 16, 128, 3>;
using Stream16x32 = StreamTiles<16, 32, 64, 2>;
using Stream32x32 = StreamTiles<32, 32, 64, 2>;

// screen_relu_twell, for up to kTokens rows, in groups of eight. A warp takes runs of inputs that
// share a scale of x, each in steps of two products.
struct ScreenTiles {
  static constexpr int kTokens = 32;
  static constexpr int kNeurons = 32;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStepInputs = 64;
  static constexpr int kRunInputs = 256;
  static constexpr int kRunSteps = kRunInputs / kStepInputs;
  static constexpr int kStepBytes = kNeurons * kStepInputs;
  static constexpr int kRunBytes = kRunSteps * kStepBytes;
  static constexpr int kFigures = 3;               // of a neuron: scale, norm, error
  static constexpr int kSumStride = kNeurons + 4;  // no two lanes' sums in a bank
  static constexpr int kStagedStride = kNeurons + kVector;
  // Of shared memory: for each warp its run; for each token its sums, what the warps know of it,
  // its candidates and its activation; for each neuron its figures; the number of candidates.
  static constexpr int shared_bytes(int tokens) {
    return kWarps * kRunBytes +
           tokens * (kWarps * (kSumStride * 4 + 16) + kNeurons * 2 + kStagedStride * 2) +
           kFigures * kNeurons * 4 + 16;
  }
};

// The gathers. A thread accumulates 16 columns in registers at a time; a block takes a group of
// columns in as many parts as that needs, and wider outputs take several groups, each with blocks
// of its own. Two blocks of 256 threads an SM leave 128 registers for each.
constexpr int kGatherThreads = 256;  // at most
constexpr int kGatherBlocks = 2;     // of so many, on an SM: they hide L2's latency
constexpr int kThreadVectors = 2;    // of eight columns
constexpr int kThreadFloats = kThreadVectors * kVector;
constexpr int kGatherColumns = 8192;  // of a group

constexpr int kPackThreads = 128;     // of pack_gate, for each row
constexpr int kProductThreads = 256;  // of hot_product

// gather_rows cuts a row's list into chunks, each the work of a block: of as many non-zeros as the
// plan says, more where that would be more than kMostChunks of them, one window at most.
constexpr int kMostChunks = 32;

// Tiles whose offsets a block holds at a time, and neurons of one window of its list. 1,024 tiles
// of 32 are 32,768 neurons, so that a decoding layer has one group; a window of 256 is nine times
// what a row of a sparse layer needs.
constexpr int kGroupTiles = 1024;
constexpr int kWindow = 256;

// transpose_fired: rows and words of bits (1,024 neurons) of a block, a thread for each row.
constexpr int kTransposeRows = 256;
constexpr int kTransposeWords = 32;
constexpr int kTransposeNeurons = 32 * kTransposeWords;

// backward_neurons: a warp sums rows of so many columns, two vectors of each lane, into three
// gradients: 48 sums and 64 registers of loads in flight, so that an SM holds twelve warps.
constexpr int kGradientThreads = 128;
constexpr int kGradientBlocks = 3;
constexpr int kGradientColumns = 2 * 32 * kVector;
constexpr int kGradientFloats = 3 * kGradientColumns;

// The chunk of a row's list that a block works on; −1: the whole row.
struct RowItem {
  int row;
  int chunk;
};

// Inputs that dot products have in shared memory at a time: eight vectors of a lane.
constexpr int kDotInputs = 2048;
constexpr int kDotVectors = kDotInputs / kVector;

// Words of a row of FiredBits come in vectors of 16 bytes.
constexpr int kFiredWords = 4;

struct alignas(16) ActiveList {
  float4 inputs[2 * kDotVectors];
  union {
    int offsets[kGroupTiles + 1];  // of the group's tiles in its list of non-zeros
    struct {
      float g[kWindow];
      float u[kWindow];
    } kept;  // by the forward pass
  };
  alignas(16) int warp_sums[32];  // vector loads of it read nothing before it
  int neurons[kWindow];
  float values[kWindow];  // g, then h
  float dots[kWindow];    // u; du
  int row_nnz;
  std::uint32_t ticket;
  RowItem items[2];
};

}  // namespace twell::cuda
