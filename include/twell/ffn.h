// Sparse feed-forward layers (paper section 3): the public operations of libtwell.
//
//   gated       g = act(x Wgᵀ), u = x Wuᵀ, h = g ⊙ u, y = h Wd
//   non-gated   h = act(x Wuᵀ), y = h Wd
//
// x is [M, D], Wg and Wu are [H, D] as in checkpoints, Wd is neuron-major [H, D] (the transpose of
// a checkpoint's down projection), y is [M, D]. All of one dtype: bf16 or f32. Accumulation is f32;
// the activation is rounded once to the dtype as it is packed, u is never rounded, y once; h is
// rounded where many rows of a block fire its neuron (FfnPlan::hot_share).
// Any M ≥ 0, D ≥ 1, H ≥ 1. Errors are twell::Error naming operation and argument.
#pragma once

#include <cstdint>
#include <string>

#include "twell/context.h"
#include "twell/format.h"
#include "twell/packed.h"
#include "twell/screen.h"
#include "twell/tensor_view.h"

namespace twell {

enum class Activation : std::uint8_t {
  relu,          // max(v, 0)
  relu_squared,  // max(v, 0)²
  fat_relu,      // v > threshold ? v : 0, threshold ≥ 0
};
const char* name_of(Activation activation);

// NaN passes through every activation and is a non-zero; ±0 never is.
struct ActivationSpec {
  Activation kind = Activation::relu;
  float threshold = 0.0F;  // fat_relu only
};

struct FfnWeights {
  // Wg, or Wu of a non-gated layer. Where there is a screen, its dtype and shape alone.
  PackedView gate;
  ConstMatrixView up;    // Wu; data null for a non-gated layer
  ConstMatrixView down;  // Wd, neuron-major
  // Instead of the packed gate: its screen, and its rows as stored, which are read where the screen
  // does not rule a neuron out. Faster where that is few: below about a tenth of them.
  ScreenView screen = {};
  ConstMatrixView gate_rows = {};

  bool gated() const { return up.data != nullptr; }
  bool screened() const { return screen.data != nullptr; }
};

// What one call saw. `neuron_counts`, if not null, has H entries, to which the number of tokens
// that fired each neuron is added; `row_nnz`, if not null, has M entries, which are set.
struct FfnStats {
  std::int64_t rows = 0;
  std::int64_t nnz = 0;
  std::int64_t max_row_nnz = 0;
  // With a screen: pre-activations that it did not rule out, of rows · H.
  std::int64_t candidates = 0;
  std::int64_t* neuron_counts = nullptr;
  std::int32_t* row_nnz = nullptr;
};

// out = act(x Wᵀ), packed in the GEMM's epilogue; the dense activation is never stored. out's
// layout chooses tile and capacity and must have rows M, cols H and x's dtype.
void gemm_relu_twell(Context& context, ConstMatrixView x, PackedView weight,
                     const ActivationSpec& activation, TwellMatrix& out);

// y = (g ⊙ (x Wuᵀ)) Wd for the packed gate g, up evaluated only where g is non-zero.
void twell_gated_ffn(Context& context, ConstMatrixView x, const TwellMatrix& gate,
                     ConstMatrixView up, ConstMatrixView down, MatrixView y);

// y = h Wd for the packed hidden state h.
void twell_spmm(Context& context, const TwellMatrix& hidden, ConstMatrixView down, MatrixView y);

// How one call of ffn() is carried out: a value to print, compare and test.
struct FfnPlan {
  CpuTier tier = CpuTier::portable;
  int threads = 1;
  std::int64_t row_block = 0;  // rows per gate GEMM block
  TwellLayout layout;          // of the packed gate of one block
  int row_splits = 1;          // groups of rows per tile, where tiles are fewer than threads
  // Neurons that at least this share of a block's rows fire, and hot_rows more, are multiplied
  // densely; above 1: none.
  double hot_share = 2.0;
  int hot_rows = 0;
  std::string to_string() const;
};
FfnPlan plan_ffn(const Context& context, std::int64_t tokens, const FfnWeights& weights);

// The whole layer, gated or not; the packed gate lives in the context's scratch, block by block.
void ffn(Context& context, ConstMatrixView x, const FfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, FfnStats* stats = nullptr);

}  // namespace twell
