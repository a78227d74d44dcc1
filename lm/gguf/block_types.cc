// All numbers are little-endian. d and m are binary16, a scale and an offset. libtwell takes the
// other blocks apart (twell/ggml.h).
//
//   Q4_1   d, m, 16 bytes: codes 0 … 15 in the lower half bytes, 16 … 31 in the upper; a number is
//          code · d + m
//   Q5_1   d, m, 32 bits: the fifth bit of each code; 16 bytes of the lower four
#include "gguf/block_types.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "twell/dtype.h"
#include "twell/ggml.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr std::array<BlockLayout, 11> kLayouts = {{
    {"F32", 0, 1, 4},
    {"F16", 1, 1, 2},
    {"BF16", 30, 1, 2},
    {"Q4_0", 2, kSymmetricBlock, 18},
    {"Q4_1", 3, 32, 20},
    {"Q5_0", 6, kSymmetricBlock, 22},
    {"Q5_1", 7, 32, 24},
    {"Q8_0", 8, kSymmetricBlock, 34},
    {"Q4_K", 12, 256, 144},
    {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},
}};

struct NumberedName {
  std::uint32_t number;
  const char* name;
};
constexpr NumberedName kOthers[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"},
};

template <class T>
T load(const std::byte* from) {
  T out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

int byte_at(const std::byte* from, std::int64_t i) { return std::to_integer<int>(from[i]); }

float half_at(const std::byte* from) { return float_of_half(load<std::uint16_t>(from)); }

// Of 16 bytes the lower, then the upper halves.
int half_byte(const std::byte* bytes, std::int64_t i) {
  return i < 16 ? byte_at(bytes, i) & 0xF : byte_at(bytes, i - 16) >> 4;
}

void with_offset(BlockType type, const std::byte* block, float* out) {
  const float scale = half_at(block), offset = half_at(block + 2);
  const bool five = type == BlockType::q5_1;
  const std::uint32_t fifth = five ? load<std::uint32_t>(block + 4) : 0;
  const std::byte* codes = block + (five ? 8 : 4);
  for (std::int64_t i = 0; i < 32; ++i) {
    const int code = half_byte(codes, i) | static_cast<int>(fifth >> i & 1U) << 4;
    out[i] = scale * static_cast<float>(code) + offset;
  }
}

// Of those that libtwell takes apart.
std::optional<GgmlFormat> ggml_format(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
      return GgmlFormat::q4_0;
    case BlockType::q5_0:
      return GgmlFormat::q5_0;
    case BlockType::q8_0:
      return GgmlFormat::q8_0;
    case BlockType::q4_k:
      return GgmlFormat::q4_k;
    case BlockType::q5_k:
      return GgmlFormat::q5_k;
    case BlockType::q6_k:
      return GgmlFormat::q6_k;
    default:
      return {};
  }
}

void dequantize_block(BlockType type, const std::byte* block, float* out) {
  switch (type) {
    case BlockType::f32:
      *out = load<float>(block);
      return;
    case BlockType::f16:
      *out = half_at(block);
      return;
    case BlockType::bf16:
      *out = static_cast<float>(bf16::from_bits(load<std::uint16_t>(block)));
      return;
    default:
      return with_offset(type, block, out);
  }
}

void quantize_q8_0(const float* numbers, std::byte* out) {
  float largest = 0;
  for (std::int64_t i = 0; i < kSymmetricBlock; ++i) {
    largest = std::max(largest, std::abs(numbers[i]));
  }
  const float scale = largest / 127;
  const float inverse = scale >= std::numeric_limits<float>::min() ? 1 / scale : 0;
  std::array<std::int8_t, kSymmetricBlock> codes{};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::int8_t>(std::round(numbers[i] * inverse));
  }
  put_codes(codes.data(), half_of_float(scale), out);
}

}  // namespace

const BlockLayout& layout_of(BlockType type) { return kLayouts.at(static_cast<std::size_t>(type)); }

std::optional<BlockType> block_type(std::uint32_t number) {
  const auto* found = std::ranges::find(kLayouts, number, &BlockLayout::number);
  if (found == kLayouts.end()) return {};
  return static_cast<BlockType>(found - kLayouts.begin());
}

std::optional<BlockType> block_type(SafeDType dtype) {
  switch (dtype) {
    case SafeDType::F32:
      return BlockType::f32;
    case SafeDType::F16:
      return BlockType::f16;
    case SafeDType::BF16:
      return BlockType::bf16;
    default:
      return {};
  }
}

std::string type_name(std::uint32_t number) {
  if (const auto known = block_type(number)) return layout_of(*known).name;
  const auto* found = std::ranges::find(kOthers, number, &NumberedName::number);
  return found == std::end(kOthers) ? "unknown" : found->name;
}

bool is_symmetric(BlockType type) {
  return type == BlockType::q4_0 || type == BlockType::q5_0 || type == BlockType::q8_0;
}

void dequantize(BlockType type, const std::byte* blocks, std::int64_t count, float* out) {
  if (const auto format = ggml_format(type)) return twell::dequantize(*format, blocks, count, out);
  const BlockLayout& layout = layout_of(type);
  for (std::int64_t b = 0; b < count; ++b) {
    dequantize_block(type, blocks + b * layout.bytes, out + b * layout.numbers);
  }
}

bool take_codes(BlockType type, const std::byte* blocks, std::int64_t count, std::int8_t* codes,
                std::uint16_t* scales) {
  constexpr std::uint16_t kOne = 0x3C00, kSign = 0x8000;
  const GgmlFormat format = ggml_format(type).value();
  bool held = true;
  for (std::int64_t b = 0; b < count; ++b) {
    GgmlBlock block;
    take_block(format, blocks + b * layout_of(type).bytes, &block);
    const bool zero = (block.scale & ~kSign) == 0, negative = (block.scale & kSign) != 0;
    scales[b] = zero ? kOne : static_cast<std::uint16_t>(block.scale & ~kSign);
    for (std::int64_t i = 0; i < kSymmetricBlock; ++i) {
      const int code = zero ? 0 : code_of(format, block, i) * (negative ? -1 : 1);
      held = held && code <= 127;
      *codes++ = static_cast<std::int8_t>(code);
    }
  }
  return held;
}

void quantize(BlockType type, const float* numbers, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    switch (type) {
      case BlockType::f16: {
        const std::uint16_t half = half_of_float(numbers[b]);
        std::memcpy(out + b * 2, &half, sizeof half);
        break;
      }
      case BlockType::bf16: {
        const bf16 narrow(numbers[b]);
        std::memcpy(out + b * 2, &narrow.bits, sizeof narrow.bits);
        break;
      }
      case BlockType::q8_0:
        quantize_q8_0(numbers + b * kSymmetricBlock, out + b * layout_of(type).bytes);
        break;
      default:
        std::memcpy(out + b * 4, numbers + b, sizeof(float));
    }
  }
}

bool quantize_finite(BlockType type, std::span<float> numbers, std::byte* out) {
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!std::ranges::all_of(numbers, finite)) return false;
  const std::int64_t blocks = std::ssize(numbers) / layout_of(type).numbers;
  quantize(type, numbers.data(), blocks, out);
  dequantize(type, out, blocks, numbers.data());
  return std::ranges::all_of(numbers, finite);
}

void put_codes(const std::int8_t* codes, std::uint16_t scale, std::byte* block) {
  std::memcpy(block, &scale, sizeof scale);
  std::memcpy(block + sizeof scale, codes, kSymmetricBlock);
}

}  // namespace twell::io
