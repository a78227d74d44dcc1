// The gate GEMM of one block of rows, for the calling thread.
#pragma once

#include "ops/gemm_input.h"

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
  GemmInput input;  // the block's rows
  ActivationSpec activation;
  TwellView out;
  std::int64_t out_row = 0;

  std::int64_t rows() const { return input.x.rows; }
};

// Rows [row_begin, row_end) × tiles [tile_begin, tile_end) of the packed gate.
void run_gate(const GateBlock& block, const void* prepared, std::int64_t row_begin,
              std::int64_t row_end, std::int64_t tile_begin, std::int64_t tile_end,
              float* accumulators);

}  // namespace twell
