// The gate GEMM of one block of rows, for the calling thread: prepares x for the kernel, runs it.
#pragma once

#include "kernels/kernel.h"

namespace twell {

// Slots of Context::scratch that the operations use.
enum ScratchSlot : int {
  kPreparedX,
  kAccumulators,
  kCounts,
  kSlots,
  kActive,
  kPartialY,
  kHotLists,
  kHotHidden,
  kHotSums,
  kHotPanels,
};

struct GateBlock {
  const GemmReluTwell& kernel;
  ConstMatrixView x;  // the block's rows, [rows, D]
  PackedView weight;
  ActivationSpec activation;
  TwellView out;
  std::int64_t out_row = 0;
};

// Bytes that prepare_x needs, 0 where the kernel reads x in place.
std::size_t prepared_x_bytes(const GateBlock& block);
// Converts rows [begin, end) of x to the kernel's dtype and padded depth.
void prepare_x(const GateBlock& block, std::int64_t begin, std::int64_t end, void* prepared);
// x of the block as a GEMM reads it.
GemmArgs x_of(const GateBlock& block, const void* prepared);
// Rows [row_begin, row_end) × tiles [tile_begin, tile_end) of the packed gate.
void run_gate(const GateBlock& block, const void* prepared, std::int64_t row_begin,
              std::int64_t row_end, std::int64_t tile_begin, std::int64_t tile_end,
              float* accumulators);

}  // namespace twell
