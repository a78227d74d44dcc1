// Blocks, little-endian:
//
//   Q4_0   scale, 16 bytes of codes in halves: numbers 0 … 15 in the lower, 16 … 31 in the upper
//   Q5_0   scale, 32 bits: the fifth bit of each code; 16 bytes as in Q4_0
//   Q8_0   scale, 32 codes
//   Q4_K   scale, minimum, 12 bytes: 8 sub-scales and 8 sub-minima of 6 bits; 128 bytes of codes in
//          halves: of 32 bytes the lower have 32 numbers and the upper the next 32
//   Q5_K   as Q4_K, but before the codes 32 bytes, of which byte i has the fifth bits of numbers i,
//          32 + i, …, lowest first
//   Q6_K   128 bytes of the lower four bits, 64 of the upper two, 16 sub-scales of 8 bits, scale
#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "twell/ggml.h"
#include "twell/half.h"

namespace twell {
namespace {

// Reads a block's fields into a GgmlBlock, or writes them from it: what a format has where is said
// once, for both directions.
template <bool kTake>
class Fields {
 public:
  using Block = std::conditional_t<kTake, GgmlBlock, const GgmlBlock>;
  using Bytes = std::conditional_t<kTake, const std::uint8_t, std::uint8_t>;

  Fields(Block& block, Bytes* bytes) : block_(block), bytes_(bytes) {}

  void scale() { two(block_.scale); }
  void minimum() { two(block_.minimum); }
  // Of number `at` of the block, bits [to, to + count) of its code are those from `from` on of a
  // byte.
  void code(std::int64_t byte, int from, int count, std::int64_t at, int to) {
    bits(byte, from, count, block_.codes[at], to);
  }
  void sub_scale(std::int64_t byte, int from, int count, int group, int to) {
    if constexpr (kTake) {
      std::uint8_t value = static_cast<std::uint8_t>(block_.scales[group]);
      bits(byte, from, count, value, to);
      block_.scales[group] = static_cast<std::int8_t>(value);
    } else {
      bits(byte, from, count, static_cast<std::uint8_t>(block_.scales[group]), to);
    }
  }
  void sub_minimum(std::int64_t byte, int from, int count, int group, int to) {
    bits(byte, from, count, block_.minima[group], to);
  }
  void skip(std::int64_t bytes) { bytes_ += bytes; }

 private:
  template <class Value>
  void two(Value& value) {
    if constexpr (kTake) {
      std::memcpy(&value, bytes_, 2);
    } else {
      std::memcpy(bytes_, &value, 2);
    }
    skip(2);
  }
  template <class Value>
  void bits(std::int64_t byte, int from, int count, Value&& value, int to) {
    const unsigned mask = (1U << static_cast<unsigned>(count)) - 1;
    if constexpr (kTake) {
      value = static_cast<std::uint8_t>(value | (bytes_[byte] >> from & mask) << to);
    } else {
      bytes_[byte] = static_cast<std::uint8_t>(bytes_[byte] | (value >> to & mask) << from);
    }
  }

  Block& block_;
  Bytes* bytes_;
};

// The lower four bits of `count` numbers from `first` on: the first half of them in the lower four
// bits of bytes, the others in the upper.
template <class F>
void nibbles(F& fields, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count / 2; ++i) {
    fields.code(i, 0, 4, first + i, 0);
    fields.code(i, 4, 4, first + count / 2 + i, 0);
  }
  fields.skip(count / 2);
}

// Six bits each of 8 sub-scales and 8 sub-minima: of the first four in one byte each, of the others
// four bits in the last four bytes and two above those of the first.
template <class F>
void sixes(F& fields) {
  for (int group = 0; group < 4; ++group) {
    fields.sub_scale(group, 0, 6, group, 0);
    fields.sub_scale(group, 6, 2, group + 4, 4);
    fields.sub_minimum(group + 4, 0, 6, group, 0);
    fields.sub_minimum(group + 4, 6, 2, group + 4, 4);
    fields.sub_scale(group + 8, 0, 4, group + 4, 0);
    fields.sub_minimum(group + 8, 4, 4, group + 4, 0);
  }
  fields.skip(12);
}

template <class F>
void k_block(F& fields, bool fifth) {
  fields.scale();
  fields.minimum();
  sixes(fields);
  if (fifth) {
    for (std::int64_t i = 0; i < 256; ++i) {
      fields.code(i % 32, static_cast<int>(i / 32), 1, i, 4);
    }
    fields.skip(32);
  }
  for (std::int64_t first = 0; first < 256; first += 64) nibbles(fields, first, 64);
}

template <class F>
void q6_k(F& fields) {
  // Halves of 128 numbers. Of each, the first 64 have their lower four bits in the lower halves of
  // 64 bytes, and the others in the upper ones.
  for (std::int64_t first = 0; first < 256; first += 128) nibbles(fields, first, 128);
  for (std::int64_t i = 0; i < 256; ++i) {
    fields.code(i / 128 * 32 + i % 32, static_cast<int>(i % 128 / 32) * 2, 2, i, 4);
  }
  fields.skip(64);
  for (int group = 0; group < 16; ++group) fields.sub_scale(group, 0, 8, group, 0);
  fields.skip(16);
  fields.scale();
}

template <class F>
void fields_of(GgmlFormat format, F fields) {
  switch (format) {
    case GgmlFormat::q4_0:
      fields.scale();
      return nibbles(fields, 0, 32);
    case GgmlFormat::q5_0:
      fields.scale();
      for (std::int64_t i = 0; i < 32; ++i) fields.code(i / 8, static_cast<int>(i % 8), 1, i, 4);
      fields.skip(4);
      return nibbles(fields, 0, 32);
    case GgmlFormat::q8_0:
      fields.scale();
      for (std::int64_t i = 0; i < 32; ++i) fields.code(i, 0, 8, i, 0);
      return;
    case GgmlFormat::q4_k:
      return k_block(fields, false);
    case GgmlFormat::q5_k:
      return k_block(fields, true);
    case GgmlFormat::q6_k:
      return q6_k(fields);
  }
}

}  // namespace

void take_block(GgmlFormat format, const void* block, GgmlBlock* out) {
  *out = {};
  fields_of(format, Fields<true>(*out, static_cast<const std::uint8_t*>(block)));
  if (!traits_of(format).sub_scales) std::fill_n(out->scales, std::size(out->scales), 1);
}

void put_block(GgmlFormat format, const GgmlBlock& in, void* block) {
  auto* const bytes = static_cast<std::uint8_t*>(block);
  std::fill_n(bytes, traits_of(format).bytes, std::uint8_t{0});
  fields_of(format, Fields<false>(in, bytes));
}

void dequantize(GgmlFormat format, const void* blocks, std::int64_t count, float* out) {
  const GgmlTraits traits = traits_of(format);
  const auto* from = static_cast<const std::byte*>(blocks);
  for (std::int64_t b = 0; b < count; ++b, from += traits.bytes) {
    GgmlBlock block;
    take_block(format, from, &block);
    const float scale = float_of_half(block.scale), minimum = float_of_half(block.minimum);
    for (std::int64_t i = 0; i < traits.numbers; ++i) {
      const std::int64_t group = i / traits.group;
      const float number = scale * static_cast<float>(block.scales[group]) *
                           static_cast<float>(code_of(format, block, i));
      *out++ = traits.minima ? number - minimum * static_cast<float>(block.minima[group]) : number;
    }
  }
}

}  // namespace twell
