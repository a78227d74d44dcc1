// One row's product with a GgmlMatrix in GgmlOrder::inputs: of the inputs that are not zero alone,
// in integers of 16 and 32 bits, which are f32 once for each block.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/common/ggml_ahead.h"
#include "kernels/cpu/common/ggml_vectors.h"
#include "kernels/kernel.h"
#include "twell/half.h"

namespace twell {
namespace {

// Inputs to integers (twell/ggml.h), `numbers` of them sharing a unit.
inline void round_ggml_inputs(const float* h, std::int64_t count, std::int64_t numbers,
                              std::int8_t* codes, float* units) {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU, kInfinite = 0x7F800000U;
  for (std::int64_t first = 0; first < count; first += numbers) {
    std::uint32_t bits = 0;  // of the largest size; integers are in the order of numbers
    for (std::int64_t i = first; i < first + numbers; ++i) {
      bits = std::max(bits, std::bit_cast<std::uint32_t>(h[i]) & kMagnitude);
    }
    const auto largest = std::bit_cast<float>(bits);
    const float inverse = 127.0F / largest;
    float& unit = units[first / numbers];
    if (bits >= kInfinite) {
      unit = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(codes + first, numbers, std::int8_t{1});  // so that some row is read
    } else if (std::isinf(inverse)) {
      unit = 0;
      std::fill_n(codes + first, numbers, std::int8_t{0});
    } else {
      unit = numbers == 32 ? float_of_half(half_of_float(largest / 127.0F)) : 1.0F / inverse;
      for (std::int64_t i = first; i < first + numbers; ++i) {
        // Adding 1.5 · 2²³ leaves the nearest integer in the last bits, ties to even.
        const float shifted = h[i] * inverse + 0x1.8p23F;
        codes[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(shifted) & 0xFFU);
      }
    }
  }
}

template <GgmlFormat kFormat>
class GgmlSparseRow {
  using V = GgmlVectors;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr int kBits = kTraits.bits;
  static constexpr std::int64_t kCodeBytes = kChunk * kBits / 8;
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan;
  static constexpr std::int64_t kGroups = kSpan / kTraits.group;
  // Pairs whose sum 16 bits hold: of the largest inputs and codes, 2 · 127 · (2^bits − 1) each.
  // With an offset o they begin at −o · Σ q, so that sums are those of q · (code − o), and smaller.
  static constexpr int kMostPairs = kBits == 4 ? 8 : kBits == 5 ? 4 : 2;
  static_assert(kBits == 8 || kMostPairs * 2 * 127 * ((1 << kBits) - 1) <= 32767);

  // Two runs of pairs whose sums are added up together, up to `middle` and up to `end`: of two
  // neighbouring groups, or of one where groups have no sub-scales.
  struct Runs {
    std::int32_t middle, end;
    std::int32_t of;        // the groups, by two, or the block, from the span's first on
    std::int16_t begin[2];  // what either sum begins at
  };
  struct Span {
    GgmlPair pairs[kSpan];  // half of them at most if none is alone
    Runs runs[kSpan];
    std::int32_t count = 0;
    std::int32_t sums[kGroups / 2];  // Σ q of two groups each, of 16 bits
  };

 public:
  // y [32 · (last − first)] = the product's outputs of chunks [first, last).
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow& h,
                  std::int64_t first, std::int64_t last, float* y) {
    std::fill_n(y, (last - first) * kChunk, 0.0F);
    Span span;
    for (std::int64_t at = 0; at < layout.inputs; at += kSpan) {
      collect(layout, memory, h, at, first, span);
      if (span.count == 0) continue;
      GgmlAhead<kFormat> ahead(layout, memory, h, at + kSpan, first, last);
      const std::int64_t block = at / kTraits.numbers, pair = at / kTraits.group / 2;
      for (std::int64_t c = first; c < last; ++c) {
        ahead.fetch();
        const std::int64_t codes = (c - first) * kCodeBytes;
        float* const to = y + (c - first) * kChunk;
        if constexpr (kTraits.sub_scales) {
          V::Sums sums = V::zero(), minima = V::zero();
          for_runs(span, codes, [&](const Runs& runs, const V::Words& a, const V::Words& b) {
            const auto* const numbers = memory + layout.pair_at(pair + runs.of, c);
            V::add_scaled(sums, a, b, sub_scales_of<kFormat>(numbers));
          });
          const std::uint16_t* const scales = scales_at(layout, memory, block, c);
          V::add_to(to, h.units[block], scales, sums);
          if constexpr (kTraits.minima) {
            for (std::int64_t p = 0; p < kGroups / 2; ++p) {
              if (span.sums[p] == 0) continue;
              V::add_minima(minima, span.sums[p],
                            memory + layout.pair_at(pair + p, c) + 2 * kChunk);
            }
            V::add_to(to, -h.units[block], scales + kChunk, minima);
          }
        } else {
          V::Sums sums = V::zero();
          std::int32_t of = span.runs[0].of;
          const auto finish = [&] {
            V::add_to(to, h.units[block + of], scales_at(layout, memory, block + of, c), sums);
            sums = V::zero();
          };
          if constexpr (kBits == 8) {
            std::int32_t i = 0;
            for (std::int32_t u = 0; u < span.count; ++u) {
              of = span.runs[u].of;
              for (; i < span.runs[u].end; ++i) {
                const GgmlPair& two = span.pairs[i];
                V::add_codes(sums, two.first + codes, two.second + codes, two.q);
              }
              finish();
            }
          } else {
            for_runs(span, codes, [&](const Runs& runs, const V::Words& a, const V::Words& b) {
              if (runs.of != of) {
                finish();
                of = runs.of;
              }
              V::add(sums, a, b);
            });
            finish();
          }
        }
      }
    }
  }

 private:
  // f(runs, sum of the first, sum of the second)
  template <class F>
  static void for_runs(const Span& span, std::int64_t codes, const F& f) {
    std::int32_t i = 0;
    const auto sum = [&](std::int16_t begin, std::int32_t end) {
      V::Words out = V::words(begin);
      for (; i < end; ++i) {
        const GgmlPair& pair = span.pairs[i];
        out = V::mac(out, V::load<kBits>(pair.first + codes, pair.second + codes), pair.q);
      }
      return out;
    };
    for (std::int32_t u = 0; u < span.count; ++u) {
      const Runs& runs = span.runs[u];
      const V::Words a = sum(runs.begin[0], runs.middle);
      const V::Words b = sum(runs.begin[1], runs.end);
      f(runs, a, b);
    }
  }

  // The inputs of a span that are not zero, as runs of pairs.
  static void collect(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow& h,
                      std::int64_t at, std::int64_t first, Span& span) {
    span.count = 0;
    std::int32_t pairs = 0;
    const std::int64_t groups = std::min(kSpan, layout.inputs - at) / kTraits.group;
    const std::int32_t* const starts = h.starts + at / kTraits.group;
    // The next inputs of a group, up to `most` pairs. Returns −offset · Σ q of them.
    const auto take = [&](std::int32_t& from, std::int32_t end, std::int32_t most,
                          std::int32_t& sum) {
      std::int32_t taken = 0;
      for (std::int32_t p = 0; p < most && from < end; ++p) {
        GgmlPair& pair = span.pairs[pairs++];
        const std::int32_t one = h.fired[from], other = from + 1 < end ? h.fired[from + 1] : one;
        pair.first = memory + layout.code_at(one, first);
        pair.second = memory + layout.code_at(other, first);
        const std::int8_t q = h.codes[one], next = from + 1 < end ? h.codes[other] : std::int8_t{0};
        pair.q = static_cast<std::uint16_t>((q & 0xFF) | (next & 0xFF) << 8);
        taken += q + next;
        from += 2;
      }
      sum += taken;
      return static_cast<std::int16_t>(-kTraits.offset * taken);
    };
    if constexpr (kTraits.sub_scales) {
      for (std::int64_t g = 0; g < groups; g += 2) {
        std::int32_t from[2] = {starts[g], starts[g + 1]};
        const std::int32_t end[2] = {starts[g + 1], starts[g + 2]};
        std::int32_t sums[2] = {};
        while (from[0] < end[0] || from[1] < end[1]) {
          Runs& runs = span.runs[span.count++];
          runs.of = static_cast<std::int32_t>(g / 2);
          runs.begin[0] = take(from[0], end[0], kMostPairs, sums[0]);
          runs.middle = pairs;
          runs.begin[1] = take(from[1], end[1], kMostPairs, sums[1]);
          runs.end = pairs;
        }
        span.sums[g / 2] = two_words(sums[0], sums[1]);
      }
    } else {
      for (std::int64_t g = 0; g < groups; ++g) {
        std::int32_t from = starts[g], sum = 0;
        while (from < starts[g + 1]) {
          Runs& runs = span.runs[span.count++];
          runs.of = static_cast<std::int32_t>(g);
          constexpr std::int32_t kMost = kBits == 8 ? kSpan : kMostPairs;
          runs.begin[0] = take(from, starts[g + 1], kMost, sum);
          runs.middle = pairs;
          runs.begin[1] = take(from, starts[g + 1], kMost, sum);
          runs.end = pairs;
        }
      }
    }
  }
};

}  // namespace
}  // namespace twell
