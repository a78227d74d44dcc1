// What the CUDA kernels of training are to the operations above them, as kernels.h is for
// inference.
//
// A *place* is a neuron that fired for a row; places are numbered by row, ascending neurons within
// one. Hot neurons, the first ones, have none: they are dense matrices.
#pragma once

#include "cuda/kernels/kernels.h"

namespace twell::cuda {

// offsets[i + 1] = offsets[i] + counts[i] for the `rows` rows from `first` on; offsets[0] = 0.
struct ScanRowsArgs {
  const std::int32_t* counts = nullptr;  // [rows]
  std::int64_t* offsets = nullptr;       // [first + rows + 1], set up to first
  int rows = 0;
  std::int64_t first = 0;
};

// The rows whose first place is one of [first, end): the others have no part in a pass.
struct PlaceRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// The places of a range by neuron, ascending: neuron n has those from starts[n] to starts[n + 1].
struct TransposeArgs {
  FiredBits fired;
  const std::int64_t* offsets = nullptr;  // [rows + 1]
  PlaceRange range;
  int rows = 0;
  int cols = 0;
  int blocks = 1;  // of kTransposeRows rows, one at least
  // Of each block of kTransposeRows rows and, in one row more, of all: [blocks + 1, 32 · stride].
  std::int32_t* counts = nullptr;
  std::int32_t* starts = nullptr;   // [cols + 1]
  std::uint32_t* places = nullptr;  // relative to range.first
  RowQueue row_queue;
  RowQueue neuron_queue;
};

// h, dv and du of a place, and its row.
struct alignas(16) PlaceGradient {
  float h, dv, du;
  int row;
};

struct BackwardRowsArgs {
  DeviceMatrix dy, x;           // [rows, depth]
  DeviceMatrix gate, up, down;  // [cols, depth] from the first neuron that is not hot on
  std::uint16_t* dx = nullptr;
  std::int64_t dx_stride = 0;
  int depth = 0;
  FiredBits fired;
  const std::int64_t* offsets = nullptr;
  PlaceRange range;
  // g in the low half, u in the high one, of the first `kept` places; of others they are computed.
  const std::uint32_t* values = nullptr;
  std::int64_t kept = 0;
  PlaceGradient* gradients = nullptr;  // of the range's places
  ActivationArgs activation;
  const float* l1 = nullptr;  // λ; may be null, for 0
  RowQueue queue;
  float* partial = nullptr;     // as in GatherRowsArgs
  const float* sums = nullptr;  // [rows, depth] that are added to; may be null
  std::int64_t sums_stride = 0;
};

// A gradient of a weight: 16-bit, or f32 where `wide`.
struct WeightGradient {
  void* data = nullptr;
  std::int64_t stride = 0;  // elements
};

struct BackwardNeuronsArgs {
  DeviceMatrix dy, x;  // [rows, depth]
  int depth = 0;
  const PlaceGradient* gradients = nullptr;
  const std::int32_t* starts = nullptr;
  const std::uint32_t* places = nullptr;
  RowQueue queue;
  float* partial = nullptr;       // [(partials + warps) × column groups × kGradientFloats]
  WeightGradient gate, up, down;  // [cols, depth]
  bool wide = false;
  bool adds = false;  // to what is there; neurons without a place are left alone
};

// Of hot neurons, all [rows, cols] with rows of `stride` elements, a multiple of kVector.
struct HotBackwardArgs {
  const std::uint16_t* g = nullptr;
  const std::uint16_t* u = nullptr;   // null in a layer without a gate
  const std::uint16_t* dh = nullptr;  // dy Wdᵀ
  std::uint16_t* h = nullptr;
  std::uint16_t* dv = nullptr;  // rows of dv_stride elements
  std::uint16_t* du = nullptr;
  std::int64_t stride = 0;
  std::int64_t dv_stride = 0;  // of du as well
  int rows = 0;
  int cols = 0;
  ActivationArgs activation;
  const float* l1 = nullptr;
};

// sums[r] = Σ |h[r]| over the columns.
struct AbsoluteSumsArgs {
  const std::uint16_t* h = nullptr;
  std::int64_t stride = 0;  // elements, a multiple of kVector; 0 past the last column
  float* sums = nullptr;    // [rows]
  int rows = 0;
  int cols = 0;
};

void launch_scan_rows(const ScanRowsArgs& args, cudaStream_t stream);
// Fills args.places and both queues, whose counters are zero before.
void launch_transpose(const TransposeArgs& args, cudaStream_t stream);
// dx and the gradients of the places, over the queue's rows.
void launch_backward_rows(const GatherPlan& plan, const BackwardRowsArgs& args,
                          cudaStream_t stream);
// dWg, dWu and dWd over the queue's neurons, by `blocks` blocks for each group of columns.
void launch_backward_neurons(const GatherPlan& plan, int blocks, const BackwardNeuronsArgs& args,
                             cudaStream_t stream);
void launch_hot_backward(DType dtype, const HotBackwardArgs& args, cudaStream_t stream);
void launch_absolute_sums(DType dtype, const AbsoluteSumsArgs& args, cudaStream_t stream);

}  // namespace twell::cuda
