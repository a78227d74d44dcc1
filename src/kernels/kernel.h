// What a kernel is to the operations above it: arguments, and for each instruction tier two tables
// of functions: by the dtype of x and y (Kernels), and by that and the type of a weight
// (WeightKernels).
//
// Kernels work on ranges and never allocate, throw or start threads; operations validate, plan and
// split the work. A tier fills both by instantiating the templates of cpu/common for its
// vectors (cpu/*/kernels.cc), and may bring functions of its own instead (cpu/amx).
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/ggml_layout.h"
#include "format/screen_parts.h"
#include "format/twell_view.h"
#include "kernels/tile_order.h"
#include "twell/device.h"
#include "twell/ffn.h"

namespace twell {

// Columns that one call of a GEMM fills before the next step takes them up.
constexpr std::int64_t kColumnBlock = 256;
// From row to row of a column block's sums: an odd number of cache lines, so that the rows that a
// tile of sums takes from L1 do not share a few of its sets.
constexpr std::int64_t kSumStride = kColumnBlock + 16;
// Kernels may write whole register tiles: room for 32 rows beyond the last.
constexpr std::int64_t gemm_accumulators(std::int64_t rows) { return (rows + 32) * kSumStride; }

// The x that a GEMM reads: of this dtype, as deep as a weight of x's own type packs, inputs past D
// zero.
struct XLayout {
  DType dtype;
  std::int64_t tiles_from = 0;  // from so many rows on it is best in TileOrder; 0: never

  bool in_tiles(std::int64_t rows) const { return tiles_from > 0 && rows >= tiles_from; }
};

// 256 inputs of a row of x for a GEMM with codes, as integers, so that sums of products are exact:
//   x = unit · Σ term[t] · base⁻ᵗ, unit a power of 2.
// A tier has three terms of 8 bits or two of 16 (Isa::Term). What they leave out of x is at most
// 2⁻²² of the block's largest input. Two terms of 8 bits leave out up to 2⁻¹⁵ of it. They serve
// bf16 whose largest input is at most kFewTermsRatio times the mean: rounding y to bf16 takes more
// from it, twice as much at that ratio, and 20 times as much where inputs are normal (root mean
// squares). One term serves a block that is whole numbers of 7 bits times a power of 2, as
// round_inputs() leaves them (twell/linear.h). Nothing is left out of it.
constexpr float kFewTermsRatio = 32;
struct CodeTerms {
  float unit = 0;  // NaN: the inputs stand as `numbers`, one being not finite, or all next to 0
  std::int32_t count = 0;     // of terms
  std::int32_t sums[3] = {};  // of each term over the inputs
  std::int32_t groups[8] = {};  // of terms of 8 bits: −8 · Σ of the last term's over each 32 inputs
  union alignas(64) {
    std::int8_t bytes[3][kCodeBlock];
    std::int16_t words[2][kCodeBlock];  // four inputs as 0, 2, 1, 3: as bytes of a word come apart
    float numbers[kCodeBlock];
  };
};

// c (+)= x Wᵀ in f32, at most kColumnBlock columns; c = x Wᵀ alone where W is of codes.
struct GemmArgs {
  const void* x = nullptr;           // [rows, depth] of the tier's XLayout
  std::int64_t x_stride = 0;         // elements from row to row; unused in TileOrder
  std::int64_t x_block = 0;          // TileOrder: bytes from block to block; 0: rows as they come
  const CodeTerms* terms = nullptr;  // [rows, code_blocks(D)]: x, where it is not null
  std::int64_t rows = 0;
  WeightView weight;  // panels
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // gemm_accumulators(rows) floats; rows kSumStride apart
  bool accumulate = false;

  // Where row `row` of x begins, a multiple of 16 in TileOrder.
  const void* x_at(std::int64_t row, std::size_t element) const {
    const auto size = static_cast<std::int64_t>(element);
    return static_cast<const std::byte*>(x) +
           (x_block > 0 ? TileOrder::row(row, size) : row * x_stride * size);
  }
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
  std::uint8_t* x8 = nullptr;   // r̂: [rows, code_depth(D)], or in TileOrder
  float* scales = nullptr;      // [rows, code_blocks(D)]
  ScreenedRow* rows = nullptr;  // [rows]
  std::int64_t x_block = 0;     // as in GemmArgs

  ScreenedRows from(std::int64_t row, std::int64_t cols) const {
    const std::int64_t bytes = x_block > 0 ? TileOrder::row(row, 1) : row * code_depth(cols);
    return {x8 + bytes, scales + row * code_blocks(cols), rows + row, x_block};
  }
};
// c = ŵ·r̂ of each row in its unit, but for the neurons' scales.
struct ScreenGemmArgs {
  ScreenedRows x;
  std::int64_t rows = 0;
  ScreenParts screen;
  std::int64_t panel_begin = 0;
  std::int64_t panels = 0;
  float* c = nullptr;  // as GemmArgs
};

// A column block of pre-activations, or of the screen's part of them, to be packed.
struct PackArgs {
  const float* c = nullptr;  // [rows, kColumnBlock], rows kSumStride apart
  std::int64_t rows = 0;
  std::int64_t first = 0;  // neuron of column 0
  std::int64_t width = 0;  // columns, at most kColumnBlock; they lie in one tile of `out`
  ActivationSpec activation;
  const float* bias = nullptr;  // [width], added to the pre-activations; null: none
  TwellView out;
  std::int64_t out_row = 0;  // row of `out` that row 0 is
};
// The same from what ScreenGemmArgs left in c.
struct ScreenPackArgs : PackArgs {
  ConstMatrixView x;        // [rows, D]
  ScreenedRows x8;          // the same rows
  WeightView weight;        // [H, D], as stored
  ScreenParts screen;       // its screen
  void* scratch = nullptr;  // screen_pack_scratch(rows) bytes
};
// Candidates of a column block, and how many each row has.
constexpr std::int64_t screen_pack_scratch(std::int64_t rows) {
  return rows * (kColumnBlock + 1) * 4;
}

// One token's active neurons: rows of a weight, and a coefficient each.
struct ActiveNeurons {
  const std::int32_t* neurons = nullptr;
  const float* values = nullptr;
  std::int64_t count = 0;
};

// Of the values that exponentials() was given: the largest, and what it wrote in their places.
struct ExponentialSum {
  float largest = 0, sum = 0;
};

// What a tier has for x and y of one dtype: bf16 or f32.
struct Kernels {
  XLayout x;                       // that a GEMM reads
  std::int64_t x8_tiles_from = 0;  // as XLayout::tiles_from, of the x8 that screen_gemm reads
  // Appends the non-zeros of act(c + bias).
  void (*pack)(const PackArgs&);

  // ScreenedRows::x_block of so many rows.
  std::int64_t x8_block(std::int64_t count) const {
    return x8_tiles_from > 0 && count >= x8_tiles_from ? TileOrder::block(count, 1) : 0;
  }

  // r̂, its scales and the norms of one token's x; `to` is that row's.
  void (*screen_row)(const void* x, const ScreenParts& screen, const ScreenedRows& to);
  void (*screen_gemm)(const ScreenGemmArgs&);

  // x to y, as the operation of that name rounds it.
  void (*round_inputs)(const void* x, std::int64_t cols, void* y);
  // y = y32, rounded.
  void (*round_row)(const float* y32, std::int64_t cols, void* y);
  // h[i] = h[i] != 0 ? h[i] * u[i] : 0, h of the dtype of the GEMM's x.
  void (*multiply_nonzeros)(const float* u, std::int64_t count, void* h);
  bool (*all_finite)(const void* row, std::int64_t cols);

  // Attention of one query to one head's keys and values, [positions, d].
  // scores[i] = scale · dot(q, keys[i])
  void (*key_scores)(const void* q, ConstMatrixView keys, float scale, float* scores);
  // values[i] = e^(values[i] − the largest); one value at least. NaN gives NaN.
  ExponentialSum (*exponentials)(float* values, std::int64_t count);
  // y32 = Σ weights[i] · values[i], values.cols floats
  void (*weighted_values)(ConstMatrixView values, const float* weights, float* y32);
};

// What a tier has to multiply x of one dtype with weights of one type: panels with gemm, rows with
// all others. Codes have no screen_pack, int4 neither weighted_rows nor pack_inputs.
struct WeightKernels {
  void (*gemm)(const GemmArgs&);
  // Up to so many rows gemm wants x in terms; 0: never.
  std::int64_t terms_up_to = 0;
  // And any number of rows whose blocks have one term.
  bool one_term_always = false;
  // Returns whether each block of the row has one term.
  bool (*to_terms)(const void* x, std::int64_t cols, CodeTerms* to) = nullptr;
  // Computes what the screen did not rule out, from the weight itself, and appends the non-zeros of
  // its activation. Returns the number of pre-activations computed.
  std::int64_t (*screen_pack)(const ScreenPackArgs&);

  // dots[i] = dot(x, W[neurons[i]]): a sampled dense-dense product, one row of it.
  void (*sampled_dots)(const void* x, const WeightView& w, const std::int32_t* neurons,
                       std::int64_t count, float* dots);
  // y32 (+)= Σ values[i] · W[neurons[i]], W.cols floats: a sparse-dense product, one row of it. Of
  // codes that are scaled by columns the scales are left to the caller, whose sum may have other
  // terms: once for all of them.
  void (*weighted_rows)(const WeightView& w, const ActiveNeurons& active, bool add, float* y32);

  // Rows, wherever they lie, to panels, of x's dtype where W is of codes, whose scales are left to
  // the caller. One panel from the rows of 16 neurons:
  void (*pack_neurons)(const WeightView& w, const std::int32_t* neurons, void* panel);
  // Panels of `columns` neurons, at most kColumnBlock, from `count` rows as inputs: neuron j of
  // input i is (W row rows[i])[first + j]. rows null: the first ones.
  void (*pack_inputs)(const WeightView& w, const std::int32_t* rows, std::int64_t count,
                      std::int64_t first, std::int64_t columns, void* panels);
  bool (*row_finite)(const WeightView& w, std::int64_t row);
};

// A row of inputs, rounded to integers or as they are (twell/ggml.h), and those of them that are
// not zero.
struct GgmlInputRow {
  const std::int8_t* codes = nullptr;    // [H] q
  const float* units = nullptr;          // [blocks along H] u
  const float* x = nullptr;              // [H] as they are
  const float* sums = nullptr;           // [groups] −Σ x, where the format has minima
  const std::int32_t* fired = nullptr;   // ascending
  const std::int32_t* starts = nullptr;  // [groups + 1]: where those of a group begin
};

constexpr std::int64_t kGgmlRows = 64;  // that are multiplied together

// What a tier has for weights in ggml's blocks.
struct GgmlKernels {
  // `count` inputs to q, and u of each `numbers` of them, 32 or 256.
  void (*round)(const float* h, std::int64_t count, std::int64_t numbers, std::int8_t* codes,
                float* units);
  // y [last − first][count][32] += those outputs of chunks [first, last) of `count` rows, kGgmlRows
  // at most, that come from the span of inputs that begins at `at`. Of rows, `fired` and `starts`
  // are not read. `memory`: that of a GgmlMatrix.
  using Rows = void(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* x,
                    std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                    float* y);
  // y [last − first][32] = the outputs of chunks [first, last) of one row.
  using Row = void(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow& x,
                   std::int64_t first, std::int64_t last, float* y);
  struct Product {
    // Of rounded inputs. Sparse: GgmlOrder::inputs.
    Row* sparse_row;
    Rows* sparse_rows;
    Rows* dense_rows;    // either order
    double most_sparse;  // the share of inputs up to which sparse_rows is faster
    // Of inputs as they are.
    Row* float_row;    // GgmlOrder::inputs
    Rows* float_rows;  // either order
  };
  Product product[kGgmlFormats];
};

// The best that `tier` may run. x, of x and y: bf16 or f32; it goes with the weight's type.
const Kernels& kernels_of(CpuTier tier, DType x);
const WeightKernels& weight_kernels_of(CpuTier tier, DType x, WeightType weight);
const GgmlKernels& ggml_kernels_of(CpuTier tier);

}  // namespace twell
