// The product of many rows with a GgmlMatrix in GgmlOrder::inputs, a span of inputs after the
// other: codes are unpacked, interleaved and multiplied with their sub-scales once for all rows,
// which gives words of 16 bits. A row multiplies those pairs of neighbouring inputs that are not
// both zero.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/common/ggml_vectors.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

template <GgmlFormat kFormat>
class GgmlTile {
  using V = GgmlVectors;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan, kPairBytes = 4 * kChunk;
  static constexpr std::int64_t kBlocks = kSpan / kTraits.numbers;
  static constexpr std::int64_t kPairsOfBlock = kTraits.numbers / 2;
  static constexpr std::int64_t kPairsOfGroups = kTraits.sub_scales ? kSpan / kTraits.group / 2 : 0;

  // What a row has in a span.
  struct Row {
    std::int32_t q[kSpan / 2];      // two inputs as words, not both zero
    std::uint16_t at[kSpan / 2];    // bytes in Weights::pairs
    std::uint8_t begin[kBlocks];    // where in those the pairs of a block begin
    std::uint8_t count[kBlocks];    // how many they are; even
    std::int32_t sums[kSpan / 64];  // Σ q of two groups of 32, of 16 bits
  };
  // What a chunk has in a span.
  struct Weights {
    alignas(64) std::uint8_t pairs[kSpan / 2 * kPairBytes];
    std::int16_t minima[kSpan / 64][2 * kChunk];
    float scales[kBlocks][kChunk], minimum[kChunk];
  };

 public:
  // y [last − first][count][32] += the products of inputs [at, at + 256), or as many as there are.
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* rows,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    const std::int64_t inputs = std::min(kSpan, layout.inputs - at);
    const std::int64_t block = at / kTraits.numbers;
    Row spans[kGgmlRows];
    for (std::int64_t r = 0; r < count; ++r) collect(rows[r].codes + at, inputs, spans[r]);
    Weights weights;
    for (std::int64_t c = first; c < last; ++c) {
      arrange(layout, memory, at, inputs, c, weights);
      Ahead ahead(layout, memory, at, inputs, c, last, count);
      for (std::int64_t r = 0; r < count; ++r, y += kChunk) {
        ahead.fetch();
        multiply(spans[r], weights, inputs / kTraits.numbers, rows[r].units + block, y);
      }
    }
  }

 private:
  static void collect(const std::int8_t* codes, std::int64_t inputs, Row& row) {
    std::int64_t found = 0;
    for (std::int64_t b = 0; b < inputs / kTraits.numbers; ++b) {
      const std::int64_t begin = found;
      for (std::int64_t p = b * kPairsOfBlock; p < (b + 1) * kPairsOfBlock; ++p) {
        const std::int8_t one = codes[2 * p], other = codes[2 * p + 1];
        row.q[found] = two_words(one, other);
        row.at[found] = static_cast<std::uint16_t>(p * kPairBytes);
        found += (one | other) != 0 ? 1 : 0;
      }
      if ((found - begin) % 2 == 1) {
        row.q[found] = 0;
        row.at[found] = 0;
        ++found;
      }
      row.begin[b] = static_cast<std::uint8_t>(begin);
      row.count[b] = static_cast<std::uint8_t>(found - begin);
    }
    for (std::int64_t p = 0; kTraits.minima && p < inputs / 64; ++p) {
      row.sums[p] = sums_of_groups(codes + 64 * p);
    }
  }

  static void arrange(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
                      std::int64_t inputs, std::int64_t c, Weights& to) {
    constexpr std::int64_t kPairsOfGroup = kTraits.group / 2;
    const std::uint8_t* from = memory + layout.code_at(at, c);
    const std::int64_t input = layout.code_at(1, 0);
    for (std::int64_t g = 0; g < inputs / kTraits.group; ++g) {
      typename V::Numbers numbers;
      if constexpr (kTraits.sub_scales) {
        const std::int64_t pair = at / kTraits.group / 2 + g / 2;
        numbers = V::numbers(sub_scales_of<kFormat>(memory + layout.pair_at(pair, c)),
                             static_cast<int>(g % 2));
      }
      for (std::int64_t p = g * kPairsOfGroup; p < (g + 1) * kPairsOfGroup; ++p) {
        V::template put_words<kTraits.bits, kTraits.offset, kTraits.sub_scales>(
            from, from + input, numbers, to.pairs + p * kPairBytes);
        from += 2 * input;
      }
    }
    for (std::int64_t b = 0; b < inputs / kTraits.numbers; ++b) {
      const auto* const scales = scales_at(layout, memory, at / kTraits.numbers + b, c);
      V::widen_scales(scales, to.scales[b]);
      if (kTraits.minima) V::widen_scales(scales + kChunk, to.minimum);
    }
    for (std::int64_t p = 0; kTraits.minima && p < kPairsOfGroups; ++p) {
      const std::uint8_t* const of = memory + layout.pair_at(at / kTraits.group / 2 + p, c);
      for (std::int64_t i = 0; i < 2 * kChunk; ++i) to.minima[p][i] = of[2 * kChunk + i];
    }
  }

  static void multiply(const Row& row, const Weights& weights, std::int64_t blocks,
                       const float* units, float* y) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (row.count[b] == 0) continue;
      const std::int64_t begin = row.begin[b];
      typename V::Sums sums = V::zero(), others = V::zero();
      for (std::int64_t j = begin; j < begin + row.count[b]; j += 2) {
        V::add_words(sums, weights.pairs + row.at[j], row.q[j]);
        V::add_words(others, weights.pairs + row.at[j + 1], row.q[j + 1]);
      }
      V::add(sums, others);
      V::add_to(y, units[b], weights.scales[b], sums);
      if constexpr (kTraits.minima) {
        typename V::Sums minima = V::zero();
        for (std::int64_t p = 0; p < kPairsOfGroups; ++p) {
          V::add_minima(minima, row.sums[p], weights.minima[p]);
        }
        V::add_to(y, -units[b], weights.minimum, minima);
      }
    }
  }

  // Brings the codes of a later chunk to the cache, evenly over the rows.
  class Ahead {
   public:
    Ahead(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
          std::int64_t inputs, std::int64_t c, std::int64_t last, std::int64_t count)
        : row_(layout.code_at(1, 0)), left_(inputs), step_((left_ + count - 1) / count) {
      constexpr std::int64_t kChunks = 4;
      if (c + kChunks < last) {
        codes_ = memory + layout.code_at(at, c + kChunks);
      } else {
        left_ = 0;
      }
    }
    void fetch() {
      for (std::int64_t i = 0; i < step_ && left_ > 0; ++i, --left_, codes_ += row_) {
        __builtin_prefetch(codes_);
      }
    }

   private:
    const std::uint8_t* codes_ = nullptr;
    std::int64_t row_, left_, step_;
  };
};

}  // namespace
}  // namespace twell
