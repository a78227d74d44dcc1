// The gate GEMM of one block of rows, for the calling thread.
#pragma once

#include <type_traits>

#include "ops/gemm_input.h"

namespace twell {

// Rows [first, first + rows) of a matrix.
template <class View>
View rows_of(View view, std::int64_t first, std::int64_t rows) {
  using Byte = std::conditional_t<std::is_same_v<View, MatrixView>, std::byte, const std::byte>;
  return View(static_cast<Byte*>(view.data) +
                  static_cast<std::size_t>(first * view.row_stride) * size_of(view.dtype),
              view.dtype, rows, view.cols, view.row_stride);
}

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
  kScreenedX,
  kCandidates,
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
