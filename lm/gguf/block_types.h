// How GGUF files store numbers: one by one, or in blocks of integers that share scales. The types
// are ggml's; of each, the comment in block_types.cc says where a block has what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/safetensors.h"

namespace twell::io {

// Those that are read.
enum class BlockType : std::uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k
};

struct BlockLayout {
  const char* name;      // "Q4_K"
  std::uint32_t number;  // in files
  std::int64_t numbers;  // in a block
  std::int64_t bytes;    // of a block
};

const BlockLayout& layout_of(BlockType type);
// By the number that a file has; none where such tensors are not read.
std::optional<BlockType> block_type(std::uint32_t number);
// For floating-point numbers; none for others.
std::optional<BlockType> block_type(SafeDType dtype);
// "IQ4_NL", also of types that are not read; "unknown" where ggml has none of that number.
std::string type_name(std::uint32_t number);

// Not of floating-point numbers.
inline bool is_quantised(BlockType type) { return layout_of(type).numbers > 1; }
// Every number is an integer of -128 to 128 times the block's scale, without an offset, and a block
// has 32: Q8_0, Q5_0 and Q4_0.
bool is_symmetric(BlockType type);
inline constexpr std::int64_t kSymmetricBlock = 32;

// Of `count` blocks the numbers. Integers times scales are exact in f32, so each number is rounded
// at most once, where an offset is added; then it is what the package `gguf` computes.
void dequantize(BlockType type, const std::byte* blocks, std::int64_t count, float* out);

// Of symmetric blocks codes of 8 bits (32 a block) and scales (bits of binary16, one a block) that
// are positive: of a negative scale the codes change sign, and where the scale is zero, codes are
// zero and the scale one. False where 8 bits do not hold a code: -128 of a negative scale.
bool take_codes(BlockType type, const std::byte* blocks, std::int64_t count, std::int8_t* codes,
                std::uint16_t* scales);

// The other way round, for types f32, f16, bf16 and q8_0. q8_0 rounds as ggml's reference does: the
// scale is the largest size over 127, codes are to the nearest, halves away from zero.
void quantize(BlockType type, const float* numbers, std::int64_t blocks, std::byte* out);
// As quantize(), and puts what was written in the numbers' place. False where one is not finite, in
// either: a number may be too large for 16 bits.
bool quantize_finite(BlockType type, std::span<float> numbers, std::byte* out);
// A block of codes and a scale, as Q8_0 has it.
void put_codes(const std::int8_t* codes, std::uint16_t scale, std::byte* block);

}  // namespace twell::io
