// What a kernel is to the operations above it: arguments, a table per instruction tier, a choice.
//
// Kernels work on ranges and never allocate, throw or start threads; operations validate, plan and
// split the work. One table entry per tier, dtype and operation: `ls
// src/kernels/cpu/*/gemm_relu_twell*` is the coverage matrix.
#pragma once

#include <cstdint>

#include "format/twell_view.h"
#include "twell/device.h"
#include "twell/ffn.h"
#include "twell/screen.h"

namespace twell {

// Where a gate kernel appends what it keeps.
struct GateOutput {
  ActivationSpec activation;
  TwellView out;
  std::int64_t out_row = 0;  // row of `out` that x's first row is
};

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

// act(x Wᵀ) for rows [0, rows) and panels [panel_begin, panel_end), appended to out.
struct GemmReluTwellArgs : GateOutput {
  const void* x = nullptr;  // [rows, depth] of the kernel's XForm
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  PackedView weight;
  std::int64_t panel_begin = 0;
  std::int64_t panel_end = 0;
  float* accumulators = nullptr;  // gemm_accumulators(rows) floats
};

// Columns that one call of the register kernels fills before the epilogue packs them.
constexpr std::int64_t kColumnBlock = 256;
// Kernels may write whole register tiles: room for 32 rows beyond the last.
constexpr std::int64_t gemm_accumulators(std::int64_t rows) { return (rows + 32) * kColumnBlock; }

struct GemmReluTwell {
  XForm x;
  void (*run)(const GemmReluTwellArgs&);
};

// The same GEMM without the epilogue: c (+)= x Wᵀ in f32, at most kColumnBlock columns.
struct GemmArgs {
  const void* x = nullptr;  // [rows, depth] of the kernel's XForm
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  PackedView weight;
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // gemm_accumulators(rows) floats; rows kColumnBlock apart
  bool accumulate = false;
};
struct Gemm {
  XForm x;
  void (*run)(const GemmArgs&);
};

// c = ŵ·r̂ of each row in its unit, but for the neurons' scales (twell/screen.h).
struct ScreenGemmArgs {
  const std::uint8_t* x = nullptr;  // r̂: [rows, screen_depth(D)]
  const float* scales = nullptr;    // [rows, screen_blocks(D)]
  std::int64_t rows = 0;
  ScreenView screen;
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // as GemmArgs
};
// What a bound needs of a token's x = s a + r, in a unit of its own in which neither s nor an input
// of r exceeds 127 (or 63).
struct ScreenedRow {
  float along = 0;    // s
  float norm = 0;     // at least ‖r‖
  float error = 0;    // at least ‖r − r̂‖
  float inverse = 0;  // of the unit
};
// As GemmReluTwellArgs, by way of the gate's screen.
struct ScreenedGateArgs : GateOutput {
  ConstMatrixView x;                     // [rows, D]
  const std::uint8_t* x8 = nullptr;      // as ScreenGemmArgs::x
  const float* x8_scales = nullptr;      // as ScreenGemmArgs::scales
  const ScreenedRow* x8_rows = nullptr;  // [rows]
  ConstMatrixView weight;                // [H, D], as stored
  ScreenView screen;                     // its screen
  std::int64_t panel_begin = 0;
  std::int64_t panel_end = 0;
  float* accumulators = nullptr;  // gemm_accumulators(rows) floats
  void* scratch = nullptr;        // screened_gate_scratch(rows) bytes

  std::int64_t rows() const { return x.rows; }
};
// Candidates of a column block, and how many each row has.
constexpr std::int64_t screened_gate_scratch(std::int64_t rows) {
  return rows * (kColumnBlock + 1) * 4;
}
struct ScreenedGate {
  // r̂, its scales and *row of one token's x.
  void (*prepare)(const void* x, const ScreenView& screen, std::uint8_t* x8, float* scales,
                  ScreenedRow* row);
  // Returns the number of pre-activations that the screen did not rule out.
  std::int64_t (*run)(const ScreenedGateArgs&);
};

// What multiplying chosen rows of a plain weight densely needs. All rows have the weight's dtype.
struct ChosenRows {
  // One panel of 16 neurons from 16 rows of `cols` inputs each.
  void (*pack_as_neurons)(const void* const* rows, std::int64_t cols, void* panel);
  // Panels of `columns` neurons, at most kColumnBlock, from the rows as inputs: neuron j of input i
  // is rows[i][first + j].
  void (*pack_as_inputs)(const void* const* rows, std::int64_t count, std::int64_t first,
                         std::int64_t columns, void* panels);
  // h[i] = h[i] != 0 ? h[i] * u[i] : 0, h of the dtype of the GEMM's x.
  void (*gate)(const float* u, std::int64_t count, void* h);
  bool (*finite)(const void* row, std::int64_t cols);
};

// One token's active neurons: column of W and coefficient.
struct ActiveNeurons {
  const std::int32_t* neurons = nullptr;
  float* values = nullptr;
  std::int64_t count = 0;
};

// values[i] *= dot(x, W[neurons[i]]): u and h = g ⊙ u of one token (the SDDMM half of
// twell_gated_ffn).
struct TwellGatedFfn {
  void (*run)(const void* x, ConstMatrixView up, const ActiveNeurons& active);
};

// y32 (+)= Σ values[i] · W[neurons[i]] (W.cols floats), and its rounding into a row of W's dtype.
struct TwellSpmm {
  void (*accumulate)(ConstMatrixView down, const ActiveNeurons& active, bool add, float* y32);
  void (*store)(const float* y32, std::int64_t cols, void* y);
};

// The best implementation that `tier` may run. dtype: bf16 or f32.
const GemmReluTwell& gemm_relu_twell_kernel(CpuTier tier, DType dtype);
const ScreenedGate& screened_gate_kernel(CpuTier tier, DType dtype);
const Gemm& gemm_kernel(CpuTier tier, DType dtype);
const ChosenRows& chosen_rows_kernel(CpuTier tier, DType dtype);
const TwellGatedFfn& twell_gated_ffn_kernel(CpuTier tier, DType dtype);
const TwellSpmm& twell_spmm_kernel(CpuTier tier, DType dtype);

}  // namespace twell
