// Every type against a definition, number by number, in fp64.
#include "gguf/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "twell/dtype.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr BlockType kTypes[] = {BlockType::f32,  BlockType::f16,  BlockType::bf16, BlockType::q4_0,
                                BlockType::q4_1, BlockType::q5_0, BlockType::q5_1, BlockType::q8_0,
                                BlockType::q4_k, BlockType::q5_k, BlockType::q6_k};

// Sign, exponent and fraction, as IEEE 754 says.
double half_by_definition(unsigned bits) {
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = (bits & 1023) / 1024.0;
  if (exponent == 31) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  return exponent == 0 ? sign * std::ldexp(fraction, -14)
                       : sign * std::ldexp(1 + fraction, exponent - 15);
}

TEST(Half, EveryOneIsReadAndWritten) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double is = half_by_definition(bits);
    const float read = float_of_half(static_cast<std::uint16_t>(bits));
    if (std::isnan(is)) {
      ASSERT_TRUE(std::isnan(read)) << bits;
      ASSERT_TRUE(std::isnan(float_of_half(half_of_float(read)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(read), is) << bits;
    ASSERT_EQ(half_of_float(read), bits);
  }
}

TEST(Half, WhatLiesBetweenGoesToTheNearestTiesToEven) {
  for (unsigned bits = 0; bits < 0x7C00; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const double below = half_by_definition(bits);
    // Behind the largest, as if there were one more.
    const double above = bits == 0x7BFF ? 65536.0 : half_by_definition(bits + 1);
    const auto middle = static_cast<float>((below + above) / 2);
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1));
    ASSERT_EQ(half_of_float(middle), even) << bits;
    ASSERT_EQ(half_of_float(std::nextafter(middle, 0.0F)), low) << bits;
    ASSERT_EQ(half_of_float(std::nextafter(middle, HUGE_VALF)), low + 1) << bits;
    ASSERT_EQ(half_of_float(-middle), even | 0x8000) << bits;
  }
  EXPECT_EQ(half_of_float(1e30F), 0x7C00);
}

// A block's bits.
class Bits {
 public:
  explicit Bits(const std::byte* block) : block_(reinterpret_cast<const unsigned char*>(block)) {}
  int byte(int at) const { return block_[at]; }
  int at(int byte, int shift, int count) const {
    return block_[byte] >> shift & ((1 << count) - 1);
  }
  double half(int byte) const {
    return half_by_definition(static_cast<unsigned>(block_[byte] | block_[byte + 1] << 8));
  }
  int whole(int at) const { return block_[at] < 128 ? block_[at] : block_[at] - 256; }

 private:
  const unsigned char* block_;
};

// Lower half bytes of 16 bytes from `first`, then the upper ones; the fifth bits from `fifth`.
int four_bits(const Bits& b, int first, int i) { return b.at(first + i % 16, i < 16 ? 0 : 4, 4); }
int fifth_bit(const Bits& b, int first, int i) { return b.at(first + i / 8, i % 8, 1) << 4; }

int scale_of_k(const Bits& b, int group) {
  return group < 4 ? b.at(4 + group, 0, 6) : b.at(8 + group, 0, 4) + 16 * b.at(group, 6, 2);
}
int offset_of_k(const Bits& b, int group) {
  return group < 4 ? b.at(8 + group, 0, 6) : b.at(8 + group, 4, 4) + 16 * b.at(4 + group, 6, 2);
}

double by_definition(BlockType type, const std::byte* block, int i) {
  const Bits b(block);
  switch (type) {
    case BlockType::f32: {
      float out;
      std::memcpy(&out, block, sizeof out);
      return out;
    }
    case BlockType::f16:
      return b.half(0);
    case BlockType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(b.byte(0) << 16 | b.byte(1) << 24));
    case BlockType::q4_0:
      return b.half(0) * (four_bits(b, 2, i) - 8);
    case BlockType::q4_1:
      return b.half(0) * four_bits(b, 4, i) + b.half(2);
    case BlockType::q5_0:
      return b.half(0) * (four_bits(b, 6, i) + fifth_bit(b, 2, i) - 16);
    case BlockType::q5_1:
      return b.half(0) * (four_bits(b, 8, i) + fifth_bit(b, 4, i)) + b.half(2);
    case BlockType::q8_0:
      return b.half(0) * b.whole(2 + i);
    case BlockType::q4_k:
    case BlockType::q5_k: {
      const int group = i / 32, codes = type == BlockType::q5_k ? 48 : 16;
      int code = b.at(codes + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4);
      if (type == BlockType::q5_k) code += 16 * b.at(16 + i % 32, group, 1);
      return b.half(0) * scale_of_k(b, group) * code - b.half(2) * offset_of_k(b, group);
    }
    case BlockType::q6_k: {
      const int half = i / 128, rest = i % 128;
      const int low = b.at(half * 64 + rest % 64, rest / 64 * 4, 4);
      const int high = b.at(128 + half * 32 + rest % 32, rest / 32 * 2, 2);
      return b.half(208) * b.whole(192 + i / 16) * (low + 16 * high - 32);
    }
  }
  return 0;
}

// Random bits, with scales that are finite.
std::vector<std::byte> random_blocks(BlockType type, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  const std::int64_t bytes = layout_of(type).bytes;
  std::vector<std::byte> out(static_cast<std::size_t>(count * bytes));
  for (std::byte& one : out) one = static_cast<std::byte>(random());
  const int halves[] = {0, type == BlockType::q6_k ? 208 : 2};
  for (std::int64_t b = 0; b < count; ++b) {
    for (const int at : halves) {
      if (at + 2 > bytes) continue;
      const auto half = half_of_float(std::ldexp(static_cast<float>(random()) / 4e9F - 0.5F, -3));
      std::memcpy(out.data() + b * bytes + at, &half, sizeof half);
    }
  }
  return out;
}

TEST(BlockTypes, NumbersAreThoseOfTheDefinition) {
  for (const BlockType type : kTypes) {
    SCOPED_TRACE(layout_of(type).name);
    constexpr std::int64_t kBlocks = 64;
    const auto blocks = random_blocks(type, kBlocks, 5);
    const BlockLayout& layout = layout_of(type);
    std::vector<float> out(static_cast<std::size_t>(kBlocks * layout.numbers));
    dequantize(type, blocks.data(), kBlocks, out.data());
    for (std::int64_t i = 0; i < std::ssize(out); ++i) {
      const std::byte* block = blocks.data() + i / layout.numbers * layout.bytes;
      const double exact = by_definition(type, block, static_cast<int>(i % layout.numbers));
      const float got = out[static_cast<std::size_t>(i)];
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(got));
        continue;
      }
      ASSERT_EQ(got, static_cast<float>(exact)) << i;  // rounded once
    }
  }
}

TEST(BlockTypes, FilesNameThemByNumber) {
  for (const BlockType type : kTypes) EXPECT_EQ(block_type(layout_of(type).number), type);
  EXPECT_EQ(block_type(10), std::nullopt);
  EXPECT_EQ(type_name(10), "Q2_K");
  EXPECT_EQ(type_name(12), "Q4_K");
  EXPECT_EQ(type_name(5), "unknown");
}

TEST(BlockTypes, CodesAndPositiveScalesAreTheSameNumbers) {
  for (const BlockType type : {BlockType::q4_0, BlockType::q5_0, BlockType::q8_0}) {
    SCOPED_TRACE(layout_of(type).name);
    ASSERT_TRUE(is_symmetric(type));
    constexpr std::int64_t kBlocks = 50;
    auto blocks = random_blocks(type, kBlocks, 6);
    const std::int64_t bytes = layout_of(type).bytes;
    std::memset(blocks.data(), 0, 2);  // a scale of zero
    for (std::byte& one : blocks) {    // -128 is for Q8_0 a code of no writer
      if (type == BlockType::q8_0 && one == std::byte{0x80}) one = std::byte{0};
    }
    std::vector<float> numbers(kBlocks * kSymmetricBlock);
    dequantize(type, blocks.data(), kBlocks, numbers.data());
    std::vector<std::int8_t> codes(numbers.size());
    std::vector<std::uint16_t> scales(kBlocks);
    ASSERT_TRUE(take_codes(type, blocks.data(), kBlocks, codes.data(), scales.data()));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float scale = float_of_half(scales[i / kSymmetricBlock]);
      ASSERT_GT(scale, 0);
      ASSERT_EQ(static_cast<float>(codes[i]) * scale, numbers[i]);
    }
    if (type != BlockType::q8_0) continue;
    // And back: the same but for signs, which codes and scale share.
    std::vector<std::byte> block(static_cast<std::size_t>(bytes));
    std::vector<float> again(kSymmetricBlock);
    put_codes(codes.data() + kSymmetricBlock, scales[1], block.data());
    dequantize(type, block.data(), 1, again.data());
    for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i], numbers[i + again.size()]);
    const std::uint16_t minus_one = 0xBC00;
    std::memcpy(block.data(), &minus_one, sizeof minus_one);
    block[2] = std::byte{0x80};
    EXPECT_FALSE(take_codes(type, block.data(), 1, codes.data(), scales.data()));
  }
  EXPECT_FALSE(is_symmetric(BlockType::q4_1));
}

TEST(BlockTypes, WrittenNumbersAreTheNearest) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(96), again(96);
  for (float& x : numbers) x = normal(random);
  std::fill_n(numbers.begin(), 32, 0.0F);
  std::fill_n(numbers.begin() + 32, 32, 1e-42F);  // whose scale has no inverse
  std::vector<std::byte> bytes(400);
  for (const BlockType type : {BlockType::f32, BlockType::f16, BlockType::bf16}) {
    quantize(type, numbers.data(), std::ssize(numbers), bytes.data());
    dequantize(type, bytes.data(), std::ssize(numbers), again.data());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float expected = type == BlockType::f32   ? numbers[i]
                             : type == BlockType::f16 ? float_of_half(half_of_float(numbers[i]))
                                                      : static_cast<float>(bf16(numbers[i]));
      ASSERT_EQ(again[i], expected);
    }
  }
  quantize(BlockType::q8_0, numbers.data(), 3, bytes.data());
  dequantize(BlockType::q8_0, bytes.data(), 3, again.data());
  float largest = 0;
  for (std::size_t i = 64; i < 96; ++i) largest = std::max(largest, std::abs(numbers[i]));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(again[i], 0);
  for (std::size_t i = 64; i < 96; ++i) {
    // Half a step, and what the scale lost in binary16.
    EXPECT_LE(std::abs(again[i] - numbers[i]), largest / 127 * 0.5 + largest * 0x1p-11);
  }
}

}  // namespace
}  // namespace twell::io
