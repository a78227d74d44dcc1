// Where a GgmlMatrix has what. Words: a *block* is ggml's, 32 or 256 inputs of one output; a
// *group* is the inputs of a block that share a sub-scale; a *chunk* is 32 outputs, which vectors
// take at a time; a *span* is 256 inputs, or what is left at the end; a *quad* is four neighbouring
// inputs. Outputs past the last are zero. In memory follow, in GgmlOrder::inputs,
//
//   codes   [inputs][chunks][code_bytes]  of an input
//   groups  [pairs of groups][chunks]     32 × 2 sub-scales, then 32 × 2 sub-minima, if it has any
//   scales  [blocks][chunks]              32 scales, then 32 minima, if it has any
//
// and in GgmlOrder::outputs [spans][chunks] pieces, in which everything lies in the order of its
// use: a Zen 4 core reads 30 GB/s of them, and 12 GB/s where the scales of a piece lie before or
// behind its codes, since each gap ends what the processor fetches ahead. A piece has *stretches*
// of the inputs of a pair of groups, or of a block of 32: first their sub-scales and sub-minima, or
// scales, and then their codes, those of 32 inputs after each other; the scales of a block of 256
// are at its end.
//
// A pair's two numbers of an output are neighbours, as instructions that add two products want
// them. Codes of 4 to 6 bits of an input lie in places of 32 bytes (place_of()): the lower four
// bits of place i in the lower half of byte i % 16 for i < 16, and in its upper half for the
// others; behind them the fifth bit of place i as bit i of 32, or two upper bits of place i in byte
// i % 8, bits 2 · (i / 8) and up. Codes of 8 bits are in the order of outputs.
//
// Code j of output d of a quad has place 4 · d + j of 128. Of 32 inputs, or eight quads, come first
// the lower four bits, 64 bytes a quad: of place i in the lower half of byte i % 64 for i < 64, and
// in its upper half for the others. Behind them are the upper bits, 16 or 32 bytes a quad: the
// fifth bit of place i as bit i of 128, or two upper bits of place i in byte i % 32, bits 2 · (i /
// 32) and up. Codes of 8 bits take a byte each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "twell/ggml.h"

namespace twell {

constexpr std::int64_t kChunk = 32;  // outputs

// Whose place makes interleaving and adding pairs, as registers of 128 bits do it, end in order.
// Codes of four bits are interleaved before they are unpacked, others after that.
constexpr std::int64_t place_of(int bits, std::int64_t output) {
  const std::int64_t eight = output / 8, at = output % 8;
  const std::int64_t pair = bits == 4 ? 8 : 16;
  return at / 4 * pair + eight / 2 * (24 - pair) + eight % 2 * 4 + at % 4;
}

// Functions are inlined by force: no tier's object may define one that another could be linked to.
struct GgmlLayout {
  static constexpr std::int64_t kSpan = 256;

  GgmlTraits traits;
  GgmlOrder order;
  std::int64_t outputs, inputs;

  constexpr GgmlLayout(GgmlFormat format, GgmlOrder order_, std::int64_t outputs_,
                       std::int64_t inputs_)
      : traits(traits_of(format)), order(order_), outputs(outputs_), inputs(inputs_) {}

  [[gnu::always_inline]] std::int64_t chunks() const { return (outputs + kChunk - 1) / kChunk; }
  [[gnu::always_inline]] std::int64_t blocks() const { return inputs / traits.numbers; }

  // Bytes of one chunk's.
  constexpr std::int64_t code_bytes() const { return kChunk * traits.bits / 8; }
  [[gnu::always_inline]] std::int64_t pair_bytes() const {
    return (traits.minima ? 4 : 2) * kChunk;
  }
  [[gnu::always_inline]] std::int64_t scale_bytes() const {
    return (traits.minima ? 4 : 2) * kChunk;
  }

  // In GgmlOrder::inputs.
  [[gnu::always_inline]] std::int64_t code_at(std::int64_t input, std::int64_t chunk) const {
    return (input * chunks() + chunk) * code_bytes();
  }
  // In GgmlOrder::outputs: the lower bits of a quad, or all eight, and the upper ones.
  [[gnu::always_inline]] std::int64_t quad_at(std::int64_t quad, std::int64_t chunk) const {
    return eight_at(quad, chunk) + quad % 8 * 4 * kChunk * lower_bits() / 8;
  }
  [[gnu::always_inline]] std::int64_t upper_at(std::int64_t quad, std::int64_t chunk) const {
    return eight_at(quad, chunk) + 32 * kChunk * lower_bits() / 8 +
           quad % 8 * 4 * kChunk * (traits.bits - lower_bits()) / 8;
  }
  // In either.
  [[gnu::always_inline]] std::int64_t pair_at(std::int64_t pair, std::int64_t chunk) const {
    if (order == GgmlOrder::outputs) return stretch_at(pair * 2 * traits.group, chunk);
    return inputs * chunks() * code_bytes() + (pair * chunks() + chunk) * pair_bytes();
  }
  [[gnu::always_inline]] std::int64_t scale_at(std::int64_t block, std::int64_t chunk) const {
    if (order == GgmlOrder::outputs) {
      const std::int64_t input = block * traits.numbers;
      return traits.sub_scales ? piece_at(input, chunk + 1) - scale_bytes()
                               : stretch_at(input, chunk);
    }
    return chunks() * (chunk_bytes(inputs) - blocks() * scale_bytes()) +
           (block * chunks() + chunk) * scale_bytes();
  }
  [[gnu::always_inline]] std::int64_t bytes() const { return chunks() * chunk_bytes(inputs); }

  // Inputs of a stretch, and bytes of its head and of 32 inputs' codes.
  constexpr std::int64_t stretch() const { return traits.sub_scales ? 2 * traits.group : 32; }
  constexpr std::int64_t head_bytes() const { return (traits.minima ? 4 : 2) * kChunk; }
  constexpr std::int64_t eight_bytes() const { return 32 * code_bytes(); }

 private:
  constexpr std::int64_t lower_bits() const { return traits.bits == 8 ? 8 : 4; }
  // Of a chunk, of so many inputs.
  [[gnu::always_inline]] std::int64_t chunk_bytes(std::int64_t count) const {
    const std::int64_t pairs = traits.sub_scales ? count / traits.group / 2 : 0;
    return count * code_bytes() + pairs * pair_bytes() + count / traits.numbers * scale_bytes();
  }
  [[gnu::always_inline]] std::int64_t piece_at(std::int64_t input, std::int64_t chunk) const {
    const std::int64_t first = input / kSpan * kSpan;
    return first / kSpan * chunks() * chunk_bytes(kSpan) +
           chunk * chunk_bytes(std::min(kSpan, inputs - first));
  }
  [[gnu::always_inline]] std::int64_t stretch_at(std::int64_t input, std::int64_t chunk) const {
    return piece_at(input, chunk) +
           input % kSpan / stretch() * (head_bytes() + stretch() * code_bytes());
  }
  // Of the eight quads that a quad is one of.
  [[gnu::always_inline]] std::int64_t eight_at(std::int64_t quad, std::int64_t chunk) const {
    return stretch_at(4 * quad, chunk) + head_bytes() + 4 * quad % stretch() / 32 * eight_bytes();
  }
};

// The scales of a block's chunk. `memory` is aligned to 64 bytes, and so is what is in it.
[[gnu::always_inline]] inline const std::uint16_t* scales_at(const GgmlLayout& layout,
                                                             const std::uint8_t* memory,
                                                             std::int64_t block,
                                                             std::int64_t chunk) {
  return reinterpret_cast<const std::uint16_t*>(memory + layout.scale_at(block, chunk));
}

}  // namespace twell
