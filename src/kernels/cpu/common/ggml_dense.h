// The product of rows with all of a GgmlMatrix, a span of inputs after the other. For many rows,
// and in GgmlOrder::inputs always, the codes of chunks are unpacked to quads once.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/common/ggml_quads.h"
#include "kernels/cpu/common/ggml_vectors.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

template <GgmlFormat kFormat>
class GgmlDense {
 protected:
  using V = GgmlQuads;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr int kBits = kTraits.bits;
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan, kQuadBytes = 128;
  static constexpr std::int64_t kQuadsOfGroup = kTraits.group / 4;
  // Whose sums a part holds. With an offset o they begin at −o · Σ q, so that sums are those of
  // q · (code − o), and smaller.
  static constexpr int kOffset = kTraits.offset + V::kOffset<kBits>;

 private:
  static constexpr int kLargest = kOffset > 0 ? kOffset : (1 << kBits) - 1;
  static constexpr std::int64_t kQuadsOfPart =
      std::min<std::int64_t>(kQuadsOfGroup, V::kInputsOfPart<kBits, kLargest> / 2);
  static constexpr std::int64_t kParts = kSpan / 4 / kQuadsOfPart;

  static constexpr GgmlLayout kLayout = {kFormat, GgmlOrder::outputs, 0, 0};
  static constexpr std::int64_t kStretchBytes =
      kLayout.head_bytes() + kLayout.stretch() / 32 * kLayout.eight_bytes();

  // What a row has in a span.
  struct Row {
    const std::int8_t* q;
    const float* units;
    float* y;                                      // of the first chunk
    std::int32_t begin[kOffset > 0 ? kParts : 1];  // what parts begin at
    std::int32_t sums[kSpan / 64];                 // Σ q of two groups of 32, of 16 bits
  };

 public:
  // y [last − first][count][32] += the products of inputs [at, at + 256), or as many as there are.
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* rows,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    const std::int64_t inputs = std::min(kSpan, layout.inputs - at);
    Row spans[kGgmlRows];
    for (std::int64_t r = 0; r < count; ++r) {
      collect(rows[r].codes + at, inputs, spans[r]);
      spans[r].units = rows[r].units + at / kTraits.numbers;
      spans[r].y = y + r * kChunk;
    }
    const bool unpacked = layout.order == GgmlOrder::inputs || count > 2 * V::kRows;
    for_chunks(layout, memory, at, first, last, unpacked, [&](const Piece& piece) {
      std::int64_t r = 0;
      const auto several = [&](auto together, auto from_codes) {
        for (; r + together <= count; r += together) {
          multiply<together, from_codes>(piece, inputs, spans + r);
        }
      };
      if (unpacked) {
        several(kTogether, std::true_type());
        several(kOne, std::true_type());
      } else {
        several(kTogether, std::false_type());
        several(kOne, std::false_type());
      }
      for (r = 0; r < count; ++r) spans[r].y += count * kChunk;
    });
  }

 protected:
  // Where a chunk's are in a span, and how far it is to the next pair of groups or block.
  struct Piece {
    const std::uint8_t* packed;
    const std::uint8_t* pairs;
    std::int64_t next_pair;
    const std::uint16_t* scales;
    std::int64_t next_scales;
    std::uint8_t* codes;  // unpacked
  };

  // f(piece) for each chunk, with its codes unpacked, as those in GgmlOrder::inputs always are, or
  // as they are.
  template <class F>
  static void for_chunks(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
                         std::int64_t first, std::int64_t last, bool unpacked, const F& f) {
    // Inputs are far apart in GgmlOrder::inputs, so a visit turns several chunks, which stay in L2.
    // Otherwise those of one stay in L1.
    constexpr std::int64_t kTurned = 8;
    // Two lines more, so that chunks do not share the cache's sets.
    constexpr std::int64_t kCodeBytes = kSpan / 4 * kQuadBytes + 128;
    const std::int64_t inputs = std::min(kSpan, layout.inputs - at);
    const bool turned = layout.order == GgmlOrder::inputs;
    alignas(64) std::uint8_t codes[kTurned * kCodeBytes];
    // Places of a chunk take divisions, so those of the first are moved on.
    Piece piece = piece_at(layout, memory, at, first);
    const Piece next = piece_at(layout, memory, at, first + 1);
    const Steps steps = {next.packed - piece.packed, next.pairs - piece.pairs,
                         next.scales - piece.scales};
    for (std::int64_t c = first; c < last; ++c) {
      const std::int64_t place = turned ? (c - first) % kTurned : 0;
      piece.codes = codes + place * kCodeBytes;
      if (turned && place == 0) {
        turn(piece.packed, layout.code_at(1, 0), inputs, steps.packed, std::min(kTurned, last - c),
             codes, kCodeBytes);
      } else if (!turned && unpacked) {
        unpack(piece, inputs, codes);
      }
      f(piece);
      piece.packed += steps.packed;
      piece.pairs += steps.pairs;
      piece.scales += steps.scales;
    }
  }

  // A quad's codes, as they are packed.
  static V::Codes load(const Piece& piece, std::int64_t quad) {
    constexpr std::int64_t kQuads = kLayout.stretch() / 4, kEight = kLayout.eight_bytes();
    constexpr std::int64_t kLower = kBits == 8 ? 128 : 64, kUpper = kEight / 8 - kLower;
    const std::uint8_t* const eight =
        piece.packed + quad / kQuads * kStretchBytes + quad % kQuads / 8 * kEight;
    return V::template load<kBits>(eight + quad % 8 * kLower,
                                   eight + 8 * kLower + quad % 8 * kUpper);
  }

 private:
  static constexpr std::integral_constant<int, V::kRows> kTogether = {};
  static constexpr std::integral_constant<int, 1> kOne = {};

  // From chunk to chunk.
  struct Steps {
    std::int64_t packed, pairs, scales;
  };
  static Piece piece_at(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t at,
                        std::int64_t c) {
    const std::int64_t pair = kTraits.sub_scales ? at / kTraits.group / 2 : 0;
    const std::int64_t block = at / kTraits.numbers;
    const bool by_inputs = layout.order == GgmlOrder::inputs;
    return {.packed = memory + (by_inputs ? layout.code_at(at, c) : layout.quad_at(at / 4, c)),
            .pairs = memory + layout.pair_at(pair, c),
            .next_pair = by_inputs ? layout.chunks() * layout.pair_bytes() : kStretchBytes,
            .scales = scales_at(layout, memory, block, c),
            .next_scales = (by_inputs ? layout.chunks() * layout.scale_bytes() : kStretchBytes) / 2,
            .codes = nullptr};
  }

  static void collect(const std::int8_t* q, std::int64_t inputs, Row& row) {
    row.q = q;
    const auto sum_of = [&](std::int64_t first, std::int64_t count) {
      std::int32_t sum = 0;
      for (std::int64_t i = first; i < first + count; ++i) sum += q[i];
      return sum;
    };
    for (std::int64_t p = 0; kOffset > 0 && p < inputs / 4 / kQuadsOfPart; ++p) {
      std::int32_t sums[2] = {};
      for (std::int64_t i = p * kQuadsOfPart * 4; i < (p + 1) * kQuadsOfPart * 4; i += 4) {
        sums[0] += sum_of(i, 2);
        sums[1] += sum_of(i + 2, 2);
      }
      row.begin[p] = V::begin(-kOffset * sums[0], -kOffset * sums[1]);
    }
    for (std::int64_t p = 0; kTraits.minima && p < inputs / 64; ++p) {
      row.sums[p] = sums_of_groups(q + 64 * p);
    }
  }

  static void unpack(const Piece& piece, std::int64_t inputs, std::uint8_t* codes) {
    for (std::int64_t quad = 0; quad < inputs / 4; ++quad) {
      V::store(load(piece, quad), codes + quad * kQuadBytes);
    }
  }
  // Quads of inputs whose codes lie `input` bytes apart, of chunks that lie `chunk` bytes apart.
  static void turn(const std::uint8_t* from, std::int64_t input, std::int64_t inputs,
                   std::int64_t chunk, std::int64_t chunks, std::uint8_t* to, std::int64_t next) {
    constexpr std::int64_t kAhead = 16;
    for (std::int64_t i = 0; i < inputs; i += 4, from += 4 * input, to += kQuadBytes) {
      for (std::int64_t c = 0; c < chunks; ++c) {
        const std::uint8_t* const at = from + c * chunk;
        for (std::int64_t k = 0; k < 4; ++k) __builtin_prefetch(at + (k + kAhead) * input, 0, 2);
        GgmlVectors::put_quad<kBits, V::kOffset<kBits>>(at, input, to + c * next);
      }
    }
  }

  // Adds a piece to the outputs of kRows rows.
  template <int kRows, bool kUnpacked>
  static void multiply(const Piece& piece, std::int64_t inputs, const Row* rows) {
    typename V::Sums sums[kRows];
    for (std::int64_t block = 0; block < inputs / kTraits.numbers; ++block) {
      for (auto& sum : sums) sum = V::zero();
      constexpr std::int64_t kGroups = kTraits.numbers / kTraits.group;
      for (std::int64_t g = 0; g < kGroups; ++g) {
        const std::int64_t quad = block * kTraits.numbers / 4 + g * kQuadsOfGroup;
        typename V::Numbers numbers;
        if constexpr (kTraits.sub_scales) {
          const auto* const pair = sub_scales_of<kFormat>(piece.pairs + g / 2 * piece.next_pair);
          numbers = V::numbers(pair, static_cast<int>(g % 2));
        }
        for (std::int64_t q = quad; q < quad + kQuadsOfGroup; q += kQuadsOfPart) {
          typename V::Part parts[kRows];
          add_quads<kRows, kUnpacked>(piece, rows, q, parts);
          for (int r = 0; r < kRows; ++r) {
            if constexpr (kTraits.sub_scales) {
              V::add_scaled(sums[r], parts[r], numbers);
            } else {
              V::template add<kBits>(sums[r], parts[r]);
            }
          }
        }
      }
      const std::uint16_t* const scales = piece.scales + block * piece.next_scales;
      for (int r = 0; r < kRows; ++r) V::add_to(rows[r].y, rows[r].units[block], scales, sums[r]);
      if constexpr (kTraits.minima) {
        for (auto& sum : sums) sum = V::zero();
        for (std::int64_t p = 0; p < kGroups / 2; ++p) {
          for (int r = 0; r < kRows; ++r) {
            V::add_minima(sums[r], rows[r].sums[p], piece.pairs + p * piece.next_pair + 2 * kChunk);
          }
        }
        for (int r = 0; r < kRows; ++r) {
          V::add_to(rows[r].y, -rows[r].units[block], scales + kChunk, sums[r]);
        }
      }
    }
  }
  // The sums of kQuadsOfPart quads.
  template <int kRows, bool kUnpacked>
  static void add_quads(const Piece& piece, const Row* rows, std::int64_t first,
                        typename V::Part* parts) {
    for (int r = 0; r < kRows; ++r) {
      parts[r] = V::part(kOffset > 0 ? rows[r].begin[first / kQuadsOfPart] : 0);
    }
    for (std::int64_t quad = first; quad < first + kQuadsOfPart; ++quad) {
      typename V::Codes codes;
      if constexpr (kUnpacked) {
        codes = V::stored(piece.codes + quad * kQuadBytes);
      } else {
        codes = load(piece, quad);
      }
      std::int32_t q[kRows];
      for (int r = 0; r < kRows; ++r) std::memcpy(q + r, rows[r].q + 4 * quad, sizeof q[r]);
      V::template mac<kBits, kRows>(parts, codes, q);
    }
  }
};

}  // namespace
}  // namespace twell
