// Where a GgmlDown has what. Words: a *block* is ggml's, 32 or 256 inputs of one output; a *group*
// is the inputs of a block that share a sub-scale; a *chunk* is 32 outputs, which vectors take at a
// time. Outputs past D are zero. In memory follow
//
//   codes   [H][chunks][code_bytes]       of an input
//   groups  [pairs of groups][chunks]     32 × 2 sub-scales, then 32 × 2 sub-minima, if it has any
//   scales  [blocks along H][chunks]      32 scales, then 32 minima, if it has any
//
// A pair's two numbers of an output are neighbours, as instructions that add two products want
// them. Codes of 4 to 6 bits lie in places of 32 bytes (place_of()): the lower four bits of place
// i in the lower half of byte i % 16 for i < 16, and in its upper half for the others; behind them
// the fifth bit of place i as bit i of 32, or two upper bits of place i in byte i % 8, bits
// 2 · (i / 8) and up. Codes of 8 bits are in the order of outputs.
#pragma once

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

struct GgmlLayout {
  GgmlTraits traits;
  std::int64_t outputs, inputs;

  GgmlLayout(GgmlFormat format, std::int64_t outputs_, std::int64_t inputs_)
      : traits(traits_of(format)), outputs(outputs_), inputs(inputs_) {}

  std::int64_t chunks() const { return (outputs + kChunk - 1) / kChunk; }
  std::int64_t blocks() const { return inputs / traits.numbers; }
  std::int64_t pairs() const { return traits.sub_scales ? inputs / traits.group / 2 : 0; }

  // Bytes of one chunk's.
  constexpr std::int64_t code_bytes() const { return kChunk * traits.bits / 8; }
  std::int64_t pair_bytes() const { return (traits.minima ? 4 : 2) * kChunk; }
  std::int64_t scale_bytes() const { return (traits.minima ? 4 : 2) * kChunk; }

  std::int64_t code_at(std::int64_t input, std::int64_t chunk) const {
    return (input * chunks() + chunk) * code_bytes();
  }
  std::int64_t pair_at(std::int64_t pair, std::int64_t chunk) const {
    return pairs_begin() + (pair * chunks() + chunk) * pair_bytes();
  }
  std::int64_t scale_at(std::int64_t block, std::int64_t chunk) const {
    return scales_begin() + (block * chunks() + chunk) * scale_bytes();
  }
  std::int64_t bytes() const { return scales_begin() + blocks() * chunks() * scale_bytes(); }

 private:
  // inputs is a multiple of 32: so are the bytes of all codes, of 64 even.
  std::int64_t pairs_begin() const { return inputs * chunks() * code_bytes(); }
  std::int64_t scales_begin() const { return pairs_begin() + pairs() * chunks() * pair_bytes(); }
};

// The scales of a block's chunk. `memory` is aligned to 64 bytes, and so is what is in it.
inline const std::uint16_t* scales_at(const GgmlLayout& layout, const std::uint8_t* memory,
                                      std::int64_t block, std::int64_t chunk) {
  return reinterpret_cast<const std::uint16_t*>(memory + layout.scale_at(block, chunk));
}

}  // namespace twell
