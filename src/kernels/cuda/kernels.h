// What the CUDA kernels are to the operations above them: arguments and launchers.
//
// Launchers only enqueue work on a stream: they never allocate or synchronise. The operations
// validate and plan. All pointers are device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/shapes.h"
#include "twell/activation.h"
#include "twell/cuda.h"

namespace twell::cuda {

// A row-major matrix of 16-bit elements.
struct DeviceMatrix {
  const std::uint16_t* data = nullptr;
  std::int64_t stride = 0;  // elements
};

struct ActivationArgs {
  float kept_above = 0.0F;  // kept: everything that is not at most this, NaN included
  Activation kind = Activation::relu;
};

// TwELL as docs/format.md has it. The record of a (row, tile) that overflows is number
// row · tiles + tile: where the worst case must be reserved anyway, a place of its own for every
// record needs no counter to claim it from, no counter to reset, and is reproducible.
struct DeviceTwell {
  std::int32_t* counts = nullptr;     // [rows × tiles]
  std::uint32_t* slots = nullptr;     // [rows × tiles × capacity]
  std::uint32_t* overflow = nullptr;  // [rows × tiles × tile]; null where capacity == tile
  int tiles = 0;
  int tile = 0;
  int capacity = 0;
};

struct GemmReluTwellArgs {
  DeviceMatrix x;       // [rows, depth]
  DeviceMatrix weight;  // [cols, depth]
  int rows = 0;         // M
  int depth = 0;        // D
  int cols = 0;         // H
  ActivationArgs activation;
  DeviceTwell out;
  int raster_group = 1;              // row tiles that are walked together (common/raster.h)
  std::uint32_t* cleared = nullptr;  // set to zero: counters of the kernel after this one
  int cleared_words = 0;
};

struct TwellGatherArgs {
  DeviceMatrix x;     // [rows, depth]; unused where not gated
  DeviceMatrix up;    // [cols, depth]; unused where not gated
  DeviceMatrix down;  // [cols, depth]
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
  int rows = 0;
  int depth = 0;
  DeviceTwell gate;
  // Blocks that share a row's neurons; more than one needs the two below.
  int splits = 1;
  float* partial = nullptr;                     // [rows × splits × depth]
  std::uint32_t* tickets = nullptr;             // [rows × column passes], zero before
  std::int32_t* row_nnz = nullptr;              // [rows], set; may be null
  unsigned long long* neuron_counts = nullptr;  // [cols], added to; may be null
};

struct TwellDenseArgs {
  std::uint16_t* dense = nullptr;  // [rows, cols]
  std::int64_t stride = 0;
  int rows = 0;
  int cols = 0;
  DeviceTwell twell;
};

// out = act(x Wᵀ) in tiles of `plan`'s shape, or streamed for few rows.
void launch_gemm_relu_twell(const GemmPlan& plan, const GemmReluTwellArgs& args,
                            cudaStream_t stream);
// y = (g ⊙ (x Wuᵀ)) Wd, or y = h Wd where not gated.
void launch_twell_gather(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream);
void launch_dense_to_twell(const TwellDenseArgs& args, cudaStream_t stream);
void launch_twell_to_dense(const TwellDenseArgs& args, cudaStream_t stream);

}  // namespace twell::cuda
