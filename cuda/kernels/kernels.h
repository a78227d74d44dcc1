// What the CUDA kernels are to the operations above them: arguments and launchers.
//
// Launchers only enqueue work on a stream: they never allocate or synchronise. The operations
// validate and plan. All pointers are device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/shapes.h"
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

// Of up. A layer without a gate has u = 1 in combine() and uncombine() (twell/activation.h).
inline constexpr Activation kPlainUp = Activation::identity;

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

// A screen of W [cols, depth] as screen_relu_twell reads it. Neurons come in groups of 32, inputs
// in steps of 64, four of which are a run; what pads them is zero. Lane (g, t) of a warp has
// neurons 8i + g of a group, i < 4, and of each half of a step inputs 8t … 8t + 7: 16 bytes of two
// neurons, the first four inputs of both, then the last four, which is mma's A operand.
struct DeviceScreen {
  std::int8_t* levels = nullptr;  // [groups][steps][i / 2][half][lane][inputs / 4][i % 2][4]
  float* along = nullptr;         // [groups][runs][g][i]: w·a / scale
  float* figures = nullptr;       // [groups][3][32]: scale, ‖ŵ‖, ‖w − ŵ‖
  std::uint16_t* axis =
      nullptr;  // [runs][256]: a, W's dtype, in each run of length 1 but for rounding
  int steps = 0;
  int runs = 0;
};

struct MakeScreenArgs {
  DeviceMatrix weight;          // [cols, depth]
  const float* axis = nullptr;  // [depth], of any length; may be null
  int depth = 0;
  int cols = 0;
  DeviceScreen screen;
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
  // screen_relu_twell alone.
  DeviceScreen screen;
  unsigned long long* candidates = nullptr;  // [1], added to; may be null
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
  float* partial = nullptr;          // [rows × column groups × splits × sums of a block]
  std::uint32_t* tickets = nullptr;  // [rows × column groups], zero before
  std::int32_t* row_nnz = nullptr;   // [rows], set; may be null
  unsigned long long* neuron_counts = nullptr;  // [cols], added to; may be null
};

// What gather_rows has to do, made by pack_gate: chunks of long rows first, so that none of them is
// left for the end. Their order in it is left to timing, which no result depends on.
struct RowQueue {
  RowItem* items = nullptr;  // [capacity]: long rows from the front on, others from the back
  std::uint32_t* counters = nullptr;      // QueueCounter and one a column group, zero before
  std::int32_t* first_partial = nullptr;  // [rows], set: of a row that blocks share, or −1
  std::uint32_t* finished = nullptr;      // [rows × column groups], zero before
  int capacity = 0;                       // rows + partials
  int partials = 0;                       // that there is room for
  int chunk = kWindow;                    // non-zeros
};
// Items from the front, from the back, partial sums handed out; then items taken of each pass.
enum QueueCounter : std::uint8_t { kFrontItems, kBackItems, kPartialsUsed, kItemsTaken };

// Which neurons fired, [rows, cols] bits: neuron n of a row is bit n % 32 of its word n / 32.
struct FiredBits {
  std::uint32_t* words = nullptr;
  int stride = 0;  // words of a row, a multiple of kFiredWords; those past the last neuron are 0
};

// A dense activation as a library's GEMM left it.
struct GateSource {
  const void* data = nullptr;  // [rows, cols] before the activation: 16-bit, or f32 where `wide`
  std::int64_t stride = 0;     // elements
  bool wide = false;
  bool aligned = true;    // rows start at 16 bytes and are padded to whole vectors
  bool activates = true;  // else values are taken as they are
  ActivationArgs activation;
};

struct PackGateArgs {
  GateSource gate;
  int rows = 0;  // of the gate; all else has them from first_row on
  int first_row = 0;
  int cols = 0;
  // The first columns as a dense matrix, if it is not null; the others are packed.
  std::uint16_t* hot = nullptr;  // [rows, hot_cols]
  std::int64_t hot_stride = 0;
  int hot_cols = 0;  // a multiple of kVector, or all
  // If not 0, u of the hot neurons stands in `gate` from this column on, a multiple of kVector, and
  // `hot` is g ⊙ u, 0 wherever g is.
  int up_col = 0;
  DeviceTwell out;
  FiredBits fired;                              // of what is packed, in one tile; may be null
  RowQueue queue;                               // items null where not wanted
  std::int32_t* row_nnz = nullptr;              // [rows], set; may be null
  unsigned long long* neuron_counts = nullptr;  // [cols], added to; may be null
};

struct HotProductArgs {
  GateSource gate;                    // [rows, cols]; 16-bit with its rows aligned where not wide
  const std::uint16_t* up = nullptr;  // [rows, cols]
  std::uint16_t* out = nullptr;       // [rows, cols]; may be where up is
  std::int64_t stride = 0;            // of both
  int rows = 0;
  int cols = 0;
};

// What gather_rows keeps of places for training; offsets null: nothing.
struct KeptPlaces {
  const std::int64_t* offsets = nullptr;  // [rows + 1], of the first place of each row
  std::uint32_t* values = nullptr;        // [places]: g in the low half, u in the high one
  std::int64_t places = 0;                // that there is room for; later ones are not kept
  float* l1 = nullptr;                    // [rows], Σ |h| is added; may be null
  float* chunk_l1 = nullptr;              // [queue.partials]
};

struct GatherRowsArgs {
  DeviceMatrix x;     // [rows, depth]; unused where not gated
  DeviceMatrix up;    // [cols, depth] from the first packed neuron on; unused where not gated
  DeviceMatrix down;  // [cols, depth], likewise
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
  int depth = 0;
  DeviceTwell gate;  // of one tile
  RowQueue queue;
  float* partial = nullptr;     // [(partials + blocks) × column groups × sums of a block]
  const float* sums = nullptr;  // [rows, depth] that are added to; may be null
  std::int64_t sums_stride = 0;
  KeptPlaces kept;
};

struct TwellToDenseArgs {
  std::uint16_t* dense = nullptr;  // [rows, cols]
  std::int64_t stride = 0;
  int rows = 0;
  int cols = 0;
  DeviceTwell twell;
};

// out = act(x Wᵀ) in tiles of `plan`'s shape, or streamed for few rows.
void launch_gemm_relu_twell(const GemmPlan& plan, const GemmReluTwellArgs& args,
                            cudaStream_t stream);
void launch_screen_relu_twell(const GemmPlan& plan, const GemmReluTwellArgs& args,
                              cudaStream_t stream);
void launch_make_screen(DType dtype, bool aligned, const MakeScreenArgs& args, cudaStream_t stream);
// y = (g ⊙ (x Wuᵀ)) Wd, or y = h Wd where not gated.
void launch_twell_gather(const GatherPlan& plan, const TwellGatherArgs& args, cudaStream_t stream);
// out = act(gate), of which the first columns stay dense, multiplied by their u if that is there.
void launch_pack_gate(DType dtype, const PackGateArgs& args, cudaStream_t stream);
// up_out = act(gate) ⊙ up_out, 0 wherever act(gate) is.
void launch_hot_product(DType dtype, const HotProductArgs& args, cudaStream_t stream);
// y = sums + (g ⊙ (x Wuᵀ)) Wd, or sums + h Wd, over the queue's rows.
void launch_gather_rows(const GatherPlan& plan, const GatherRowsArgs& args, cudaStream_t stream);
void launch_twell_to_dense(const TwellToDenseArgs& args, cudaStream_t stream);

}  // namespace twell::cuda
