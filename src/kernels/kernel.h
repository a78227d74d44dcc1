// What a kernel is to the operations above it: arguments, and one table of functions for each
// instruction tier and dtype.
//
// Kernels work on ranges and never allocate, throw or start threads; operations validate, plan and
// split the work. A tier fills the table by instantiating the templates of cpu/common for its
// vectors (cpu/*/kernels.cc), and may bring functions of its own instead (cpu/amx).
#pragma once

#include <cstdint>

#include "format/packed_view.h"
#include "format/twell_view.h"
#include "twell/device.h"
#include "twell/ffn.h"

namespace twell {

// Columns that one call of a GEMM fills before the next step takes them up.
constexpr std::int64_t kColumnBlock = 256;
// Kernels may write whole register tiles: room for 32 rows beyond the last.
constexpr std::int64_t gemm_accumulators(std::int64_t rows) { return (rows + 32) * kColumnBlock; }

// The x that a GEMM reads: of this dtype, as deep as the packed weight, inputs past D zero.
struct XForm {
  DType dtype;
  // From so many rows on, rows are to be an odd number of cache lines apart. At D = 2048 they
  // follow each other at 4 KiB, so the lines that a tile of 16 rows takes from them share one set
  // of L1, and those of a block of rows a few sets of L2. 0: never.
  std::int64_t spread_from = 0;

  // From row to row of x where it is copied for the kernel.
  std::int64_t stride(std::int64_t depth, std::int64_t rows) const {
    return spreads(rows) && !odd_lines(depth) ? depth + 64 / element() : depth;
  }
  // Whether rows so far apart need not be copied.
  bool accepts(std::int64_t stride, std::int64_t rows) const {
    return !spreads(rows) || odd_lines(stride);
  }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(dtype)); }
  bool spreads(std::int64_t rows) const { return spread_from > 0 && rows >= spread_from; }
  bool odd_lines(std::int64_t stride) const { return stride * element() % 128 == 64; }
};

// c (+)= x Wᵀ in f32, at most kColumnBlock columns.
struct GemmArgs {
  const void* x = nullptr;  // [rows, depth] of the tier's XForm
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  PackedView weight;
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // gemm_accumulators(rows) floats; rows kColumnBlock apart
  bool accumulate = false;
};

// What a token's bound needs of x = s a + r (twell/screen.h), in a unit of its own in which neither
// s nor an input of r exceeds 127 (or 63).
struct ScreenedRow {
  float along = 0;    // s
  float norm = 0;     // at least ‖r‖
  float error = 0;    // at least ‖r − r̂‖
  float inverse = 0;  // of the unit
};
// Rows of x in 8 bits.
struct ScreenedRows {
  std::uint8_t* x8 = nullptr;   // r̂: [rows, screen_depth(D)]
  float* scales = nullptr;      // [rows, screen_blocks(D)]
  ScreenedRow* rows = nullptr;  // [rows]

  ScreenedRows from(std::int64_t row, std::int64_t cols) const {
    return {x8 + row * screen_depth(cols), scales + row * screen_blocks(cols), rows + row};
  }
};
// c = ŵ·r̂ of each row in its unit, but for the neurons' scales.
struct ScreenGemmArgs {
  ScreenedRows x;
  std::int64_t rows = 0;
  ScreenView screen;
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // as GemmArgs
};

// A column block of pre-activations, or of the screen's part of them, to be packed.
struct PackArgs {
  const float* c = nullptr;  // [rows, kColumnBlock]
  std::int64_t rows = 0;
  std::int64_t first = 0;  // neuron of column 0
  std::int64_t width = 0;  // columns, at most kColumnBlock; they lie in one tile of `out`
  ActivationSpec activation;
  TwellView out;
  std::int64_t out_row = 0;  // row of `out` that row 0 is
};
// The same from what ScreenGemmArgs left in c.
struct ScreenPackArgs : PackArgs {
  ConstMatrixView x;        // [rows, D]
  ScreenedRows x8;          // the same rows
  ConstMatrixView weight;   // [H, D], as stored
  ScreenView screen;        // its screen
  void* scratch = nullptr;  // screen_pack_scratch(rows) bytes
};
// Candidates of a column block, and how many each row has.
constexpr std::int64_t screen_pack_scratch(std::int64_t rows) {
  return rows * (kColumnBlock + 1) * 4;
}

// One token's active neurons: rows of a weight, and a coefficient each.
struct ActiveNeurons {
  const std::int32_t* neurons = nullptr;
  float* values = nullptr;
  std::int64_t count = 0;
};

// What a tier has for one dtype: bf16 or f32. Matrices, x and y are of that dtype.
struct Kernels {
  XForm x;  // that gemm reads
  void (*gemm)(const GemmArgs&);
  // Appends the non-zeros of act(c).
  void (*pack)(const PackArgs&);

  // r̂, its scales and the norms of one token's x; `to` is that row's.
  void (*screen_row)(const void* x, const ScreenView& screen, const ScreenedRows& to);
  void (*screen_gemm)(const ScreenGemmArgs&);
  // Computes what the screen did not rule out, from the weight itself, and appends the non-zeros of
  // its activation. Returns the number of pre-activations computed.
  std::int64_t (*screen_pack)(const ScreenPackArgs&);

  // values[i] *= dot(x, W[neurons[i]]): a sampled dense-dense product, one row of it.
  void (*sampled_dots)(const void* x, ConstMatrixView w, const ActiveNeurons& active);
  // y32 (+)= Σ values[i] · W[neurons[i]], W.cols floats: a sparse-dense product, one row of it.
  void (*weighted_rows)(ConstMatrixView w, const ActiveNeurons& active, bool add, float* y32);
  // y = y32, rounded.
  void (*round_row)(const float* y32, std::int64_t cols, void* y);

  // Rows of a weight, wherever they lie, to panels. One panel of 16 neurons from 16 rows of `cols`
  // inputs each:
  void (*pack_neurons)(const void* const* rows, std::int64_t cols, void* panel);
  // Panels of `columns` neurons, at most kColumnBlock, from the rows as inputs: neuron j of input i
  // is rows[i][first + j].
  void (*pack_inputs)(const void* const* rows, std::int64_t count, std::int64_t first,
                      std::int64_t columns, void* panels);
  // h[i] = h[i] != 0 ? h[i] * u[i] : 0, h of the dtype of the GEMM's x.
  void (*multiply_nonzeros)(const float* u, std::int64_t count, void* h);
  bool (*all_finite)(const void* row, std::int64_t cols);
};

// The best that `tier` may run. dtype: bf16 or f32.
const Kernels& kernels_of(CpuTier tier, DType dtype);

}  // namespace twell
