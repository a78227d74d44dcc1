// Weights in the block formats of ggml, which GGUF files of llama.cpp hold: integers that share
// scales, 32 or 256 to a block.
//
// Weights are [outputs, inputs] there, with blocks along the inputs: each holds some inputs of one
// output. A down weight (stored neurons first elsewhere in twell) most of whose inputs are zero
// would have to be read whole. GgmlMatrix keeps the same integers and scales in another order, and
// ggml_matmul() multiplies them: those of the inputs that are not zero, or all of them for many
// outputs at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "twell/context.h"
#include "twell/packed.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

enum class GgmlFormat : std::uint8_t { q4_0, q5_0, q8_0, q4_k, q5_k, q6_k };
constexpr std::size_t kGgmlFormats = 6;

// What differs between formats. A number of a block is, in exact arithmetic,
//   scale · sub-scale · (code − offset) − minimum · sub-minimum
// where all but the scale and the minimum, which are binary16, are integers.
struct GgmlTraits {
  const char* name;      // ggml's
  std::int64_t numbers;  // in a block
  std::int64_t bytes;    // of a block
  std::int64_t group;    // numbers that share a sub-scale and a sub-minimum
  int bits;              // of a code; those of 8 have a sign
  int offset = 0;
  bool sub_scales = false;
  bool minima = false;
};
constexpr GgmlTraits traits_of(GgmlFormat format) {
  constexpr GgmlTraits kAll[] = {
      {.name = "Q4_0", .numbers = 32, .bytes = 18, .group = 32, .bits = 4, .offset = 8},
      {.name = "Q5_0", .numbers = 32, .bytes = 22, .group = 32, .bits = 5, .offset = 16},
      {.name = "Q8_0", .numbers = 32, .bytes = 34, .group = 32, .bits = 8},
      {"Q4_K", 256, 144, 32, 4, 0, true, true},
      {"Q5_K", 256, 176, 32, 5, 0, true, true},
      {"Q6_K", 256, 210, 16, 6, 32, true},
  };
  static_assert(std::size(kAll) == kGgmlFormats, "a row for each format, in their order");
  return kAll[static_cast<std::size_t>(format)];
}
constexpr const char* name_of(GgmlFormat format) { return traits_of(format).name; }

// A block taken apart.
struct GgmlBlock {
  std::uint8_t codes[256];  // those of 8 bits in two's complement
  std::int8_t scales[16];   // of the groups; 1 where the format has none
  std::uint8_t minima[16];  // of the groups; 0 where the format has none
  std::uint16_t scale;      // binary16
  std::uint16_t minimum;    // binary16; 0 where the format has none
};
// The integer that a code stands for.
constexpr int code_of(GgmlFormat format, const GgmlBlock& block, std::int64_t i) {
  const GgmlTraits traits = traits_of(format);
  return traits.bits == 8 ? static_cast<std::int8_t>(block.codes[i])
                          : block.codes[i] - traits.offset;
}
// `block`: traits_of(format).bytes bytes, at any address. put_block() is the inverse of
// take_block(), bit for bit.
void take_block(GgmlFormat format, const void* block, GgmlBlock* out);
void put_block(GgmlFormat format, const GgmlBlock& in, void* block);
// The numbers of `count` blocks as f32: exact, but for one rounding where a minimum is subtracted.
void dequantize(GgmlFormat format, const void* blocks, std::int64_t count, float* out);

// A matrix [rows, cols] in blocks along its rows, one row after the other, in memory of somebody
// else. cols is a multiple of a block's numbers.
struct GgmlView {
  GgmlFormat format = GgmlFormat::q4_k;
  const void* blocks = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t row_bytes() const {
    return cols / traits_of(format).numbers * traits_of(format).bytes;
  }
};

// What lies together in a GgmlMatrix.
enum class GgmlOrder : std::uint8_t {
  // All outputs of one input: for inputs most of which are zero (down).
  inputs,
  // 256 inputs of 32 outputs: for inputs that are dense (gate and up).
  outputs,
};

// The share of inputs that are not zero above which products of a few rows are faster in
// GgmlOrder::outputs. Measured on two Zen 4 cores with 2560 outputs and 18432 inputs; 64 rows are
// as fast in either order.
constexpr double sparse_limit(GgmlFormat format) {
  constexpr double kLimits[] = {0.6, 0.5, 0.6, 0.6, 0.5, 0.55};
  static_assert(std::size(kLimits) == kGgmlFormats, "one for each format, in their order");
  return kLimits[static_cast<std::size_t>(format)];
}

// A weight that owns its memory: 3 % more than the blocks at most, where the outputs are a multiple
// of 32. A value; copies share it.
class GgmlMatrix {
 public:
  // `weight`: at least one row and one block. Throws Error naming the argument, also where a scale
  // or a minimum is not finite. `context`: whose threads pack; null: OpenMP's.
  GgmlMatrix(const GgmlView& weight, GgmlOrder order, const Context* context = nullptr);

  GgmlFormat format() const { return format_; }
  GgmlOrder order() const { return order_; }
  std::int64_t outputs() const { return outputs_; }  // rows of the view
  std::int64_t inputs() const { return inputs_; }    // its columns
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }
  const void* data() const { return memory_.data(); }
  // The blocks as they were, bit for bit, row after row, at any address.
  void unpack(void* blocks, const Context* context = nullptr) const;

 private:
  GgmlFormat format_;
  GgmlOrder order_;
  std::int64_t outputs_, inputs_;
  PreparedMemory memory_;
};

// What ggml_matmul() multiplies.
enum class GgmlInputs : std::uint8_t {
  rounded,     // to integers of 8 bits, as ggml does on x86
  as_they_are  // f32; slower for many rows where the processor multiplies integers faster
};

// y = x Wᵀ, x [M, inputs] and y [M, outputs] in f32. In GgmlOrder::inputs, those that are zero read
// nothing of W.
//
// Inputs as they are: for each group, x · (code − offset) is summed in f32. The sums of a block's
// groups are multiplied with their sub-scales and summed, and those of a row's blocks with their
// scales. Sums of −x are multiplied with the minima likewise. On one tier, a row has the same bits
// among any others and in either order of W, up to the sign of zero; with AMX it has other bits
// among twelve rows or more. A row of x with a number that is not finite gives a row of y in which
// none is finite. Where scales are at most 1, sums of finite numbers below 3 · 10³² overflow only
// if y does.
//
// Rounded inputs, those of a block of W together: products of integers are the ones that ggml sums,
// and their sums are exact; one is rounded to f32 for each block, or two where it has minima, and
// the f32 sum over blocks is in another order than ggml's.
//
// Rounded inputs are q · u: with a the largest |x| of the block and i = 127 / a in f32,
// q = round(x · i), ties to even, and u = 1 / i, or, in formats of blocks of 32, a / 127 rounded to
// binary16 (as in ggml it is infinite from a of 8.3 · 10⁶ on, and zero below 3.8 · 10⁻⁶). Where a
// is 0, or so small that i is infinite, all q are 0. A block with an input that is not finite makes
// the whole row of y NaN.
//
// M may be 0. Throws Error naming the argument.
void ggml_matmul(Context& context, ConstMatrixView x, const GgmlMatrix& w, MatrixView y,
                 GgmlInputs inputs = GgmlInputs::rounded);

}  // namespace twell
#pragma GCC visibility pop
