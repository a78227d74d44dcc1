// The product of many rows with a GgmlDown, a span of inputs after the other: codes are unpacked
// and interleaved once for all rows. A row multiplies those pairs of neighbouring inputs that are
// not both zero, and always four at a time, so that few branches depend on what fired.
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
  static constexpr int kBits = kTraits.bits;
  static constexpr std::int64_t kSpan = kGgmlSpan, kPairBytes = V::kPairBytes<kBits>;

  // A *stretch* is 16 inputs of a group, or eight pairs; a *couple* is two stretches whose sums are
  // added up together: of two groups that share a vector of sub-scales, or the halves of a block.
  // A *unit* is four pairs.
  static constexpr int kCouples = kSpan / 32, kUnit = 4;
  static constexpr std::int64_t stretch_at(std::int64_t couple, std::int64_t side) {
    if (kTraits.sub_scales && kTraits.group == 32) {
      return couple / 2 * 64 + couple % 2 * 16 + side * 32;
    }
    return couple * 32 + side * 16;
  }
  // Units whose sum 16 bits hold: of the largest inputs and codes. With an offset o they begin at
  // −o · Σ q, so that sums are those of q · (code − o).
  static constexpr int kLargest = kTraits.offset > 0 ? kTraits.offset : (1 << kBits) - 1;
  static constexpr int kUnitsOfSum = 2 * kUnit * 2 * 127 * kLargest <= 32767 ? 2 : 1;
  static_assert(kBits == 8 || kUnitsOfSum * kUnit * 2 * 127 * kLargest <= 32767);
  static constexpr int kRounds = 2 / kUnitsOfSum;

  // What a row has in a span.
  struct Stretch {
    std::uint16_t q[2 * kUnit];   // two inputs; those that are not zero first
    std::uint16_t at[2 * kUnit];  // bytes in Weights::pairs
  };
  struct Row {
    Stretch of[kCouples][2];
    std::int16_t begin[kCouples][kRounds][2];
    int units[kCouples];
    std::int32_t sums[kCouples / 2];  // Σ q of two groups of 32, of 16 bits
    bool fired;
  };
  // What a chunk has in a span.
  struct Weights {
    alignas(64) std::uint8_t pairs[kSpan / 2 * kPairBytes];
    std::int16_t numbers[kCouples][2 * kChunk], minima[kCouples / 2][2 * kChunk];
    float scales[kCouples][kChunk], minimum[kChunk];
  };

 public:
  // y [last − first][count][32] += the products of inputs [at, at + 256), or as many as there are.
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputs* rows,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    const std::int64_t couples = std::min(kSpan, layout.inputs - at) / 32;
    const std::int64_t block = at / kTraits.numbers;
    Row spans[kGgmlRows];
    for (std::int64_t r = 0; r < count; ++r) collect(rows[r].codes + at, couples, spans[r]);
    Weights weights;
    for (std::int64_t c = first; c < last; ++c) {
      arrange(layout, memory, at, couples, c, weights);
      Ahead ahead(layout, memory, at, couples, c, last, count);
      for (std::int64_t r = 0; r < count; ++r, y += kChunk) {
        ahead.fetch();
        if (spans[r].fired) multiply(spans[r], weights, couples, rows[r].units + block, y);
      }
    }
  }

 private:
  static void collect(const std::int8_t* codes, std::int64_t couples, Row& row) {
    row.fired = false;
    for (std::int64_t k = 0; k < couples; ++k) {
      int most = 0;
      for (std::int64_t side = 0; side < 2; ++side) {
        Stretch& to = row.of[k][side];
        const std::int64_t first = stretch_at(k, side);
        std::uint16_t pairs[2 * kUnit];
        std::memcpy(pairs, codes + first, sizeof pairs);
        to = {};
        int pairs_there = 0;
        for (int j = 0; j < 2 * kUnit; ++j) {
          to.q[pairs_there] = pairs[j];
          to.at[pairs_there] = static_cast<std::uint16_t>((first / 2 + j) * kPairBytes);
          pairs_there += pairs[j] != 0 ? 1 : 0;
        }
        most = std::max(most, pairs_there);
        for (int u = 0; kTraits.offset > 0 && u < kRounds; ++u) {
          constexpr int kPairs = kUnitsOfSum * kUnit;
          row.begin[k][u][side] =
              static_cast<std::int16_t>(-kTraits.offset * sum_of(to.q + u * kPairs, kPairs));
        }
      }
      row.units[k] = (most + kUnit - 1) / kUnit;
      row.fired = row.fired || most > 0;
    }
    for (std::int64_t p = 0; kTraits.minima && p < couples / 2; ++p) {
      std::int32_t sums[2] = {};
      for (std::int64_t i = 0; i < 32; ++i) {
        sums[0] += codes[64 * p + i];
        sums[1] += codes[64 * p + 32 + i];
      }
      row.sums[p] = static_cast<std::int32_t>(static_cast<std::uint16_t>(sums[0]) |
                                              static_cast<std::uint32_t>(sums[1]) << 16U);
    }
  }
  static int sum_of(const std::uint16_t* pairs, int count) {
    int sum = 0;
    for (int j = 0; j < count; ++j) {
      sum += static_cast<std::int8_t>(pairs[j] & 0xFFU) + static_cast<std::int8_t>(pairs[j] >> 8U);
    }
    return sum;
  }

  static void arrange(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
                      std::int64_t couples, std::int64_t c, Weights& to) {
    for (std::int64_t i = 0; i < 16 * couples; ++i) {
      V::interleave<kBits>(memory + layout.code_at(at + 2 * i, c),
                           memory + layout.code_at(at + 2 * i + 1, c), to.pairs + i * kPairBytes);
    }
    const std::int64_t blocks = 32 * couples / kTraits.numbers;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto* const scales = scales_at(layout, memory, at / kTraits.numbers + b, c);
      V::widen_scales(scales, to.scales[b]);
      if (kTraits.minima) V::widen_scales(scales + kChunk, to.minimum);
    }
    constexpr std::int64_t kPairs = kTraits.sub_scales ? kSpan / kTraits.group / 2 : 0;
    for (std::int64_t p = 0; p < kPairs; ++p) {
      const std::uint8_t* const from = memory + layout.pair_at(at / kTraits.group / 2 + p, c);
      for (std::int64_t i = 0; i < 2 * kChunk; ++i) {
        to.numbers[p][i] = kTraits.minima ? from[i] : static_cast<std::int8_t>(from[i]);
        if (kTraits.minima) to.minima[p][i] = from[2 * kChunk + i];
      }
    }
  }

  static void multiply(const Row& row, const Weights& weights, std::int64_t couples,
                       const float* units, float* y) {
    if constexpr (kTraits.sub_scales) {
      V::Sums sums = V::zero();
      for (int k = 0; k < kCouples; ++k) {
        const std::int16_t* const numbers = weights.numbers[kTraits.group == 32 ? k / 2 : k];
        for_sums(row, weights, k,
                 [&](const V::Words& a, const V::Words& b) { V::add_scaled(sums, a, b, numbers); });
      }
      V::add_to(y, units[0], weights.scales[0], sums);
      if constexpr (kTraits.minima) {
        V::Sums minima = V::zero();
        for (int p = 0; p < kCouples / 2; ++p) {
          V::add_minima(minima, row.sums[p], weights.minima[p]);
        }
        V::add_to(y, -units[0], weights.minimum, minima);
      }
    } else {
      for (std::int64_t k = 0; k < couples; ++k) {
        if (row.units[k] == 0) continue;
        V::Sums sums = V::zero();
        if constexpr (kBits == 8) {
          for (int j = 0; j < row.units[k] * kUnit; ++j) {
            for (const Stretch& stretch : row.of[k]) {
              V::add_pair(sums, weights.pairs + stretch.at[j], stretch.q[j]);
            }
          }
        } else {
          for_sums(row, weights, k,
                   [&](const V::Words& a, const V::Words& b) { V::add(sums, a, b); });
        }
        V::add_to(y, units[k], weights.scales[k], sums);
      }
    }
  }
  // f(sum of the first stretch, sum of the second), of as many units as 16 bits hold.
  template <class F>
  static void for_sums(const Row& row, const Weights& weights, std::int64_t k, const F& f) {
    const int units = row.units[k];
    const auto begin = [&](int round, int side) {
      return V::words(kTraits.offset > 0 ? row.begin[k][round][side] : std::int16_t{0});
    };
    const auto unit = [&](V::Words& sum, int side, int first) {
      const Stretch& stretch = row.of[k][side];
      for (int j = first; j < first + kUnit; ++j) {
        sum = V::mac(sum, V::stored(weights.pairs + stretch.at[j]), stretch.q[j]);
      }
    };
    if (units == 0) return;
    V::Words a = begin(0, 0), b = begin(0, 1);
    unit(a, 0, 0);
    unit(b, 1, 0);
    if (units == 2) {
      if constexpr (kUnitsOfSum == 1) {
        f(a, b);
        a = begin(1, 0);
        b = begin(1, 1);
      }
      unit(a, 0, kUnit);
      unit(b, 1, kUnit);
    }
    f(a, b);
  }

  // Brings the codes of a later chunk to the cache, evenly over the rows.
  class Ahead {
   public:
    Ahead(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
          std::int64_t couples, std::int64_t c, std::int64_t last, std::int64_t count)
        : row_(layout.code_at(1, 0)), left_(32 * couples), step_((left_ + count - 1) / count) {
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
