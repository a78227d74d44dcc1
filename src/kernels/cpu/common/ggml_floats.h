// Products with a GgmlMatrix of inputs as they are. Of each group an f32 sum of x · (code − offset)
// is made, in the order of the inputs; of each block, of those sums times their sub-scales, in the
// order of the groups. So rows alone, rows together and both orders of the matrix give the same
// bits, up to the sign of zero.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/common/ggml_ahead.h"
#include "kernels/cpu/common/ggml_dense.h"
#include "kernels/cpu/common/ggml_float_vectors.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

// The sums of a block.
template <GgmlFormat kFormat>
struct GgmlBlockSums {
  using V = GgmlFloats;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);

  V::Chunk plus = V::zero(), minus = V::zero();

  // The sum of a group, the first or second (`side`) of a pair, and its −Σ x.
  void add(const V::Chunk& sum, const std::uint8_t* pair, int side) {
    if constexpr (kTraits.sub_scales) {
      V::add(plus, sum, V::numbers(sub_scales_of<kFormat>(pair), side));
    } else {
      plus = sum;
    }
  }
  void add_minimum(float minus_x, const std::uint8_t* pair, int side) {
    V::add(minus, minus_x, V::numbers(pair + 2 * kChunk, side));
  }
  void add_to(V::Chunk& y, const std::uint16_t* scales) const {
    V::add(y, plus, V::scales(scales));
    if constexpr (kTraits.minima) V::add(y, minus, V::scales(scales + kChunk));
  }
};

// One row with a matrix in GgmlOrder::inputs: of its inputs that are not zero alone.
template <GgmlFormat kFormat>
class GgmlFloatRow {
  using V = GgmlFloats;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan;
  static constexpr std::int64_t kGroups = kSpan / kTraits.group;
  static constexpr std::int64_t kGroupsOfBlock = kTraits.numbers / kTraits.group;
  static constexpr std::int64_t kCodeBytes = kChunk * kTraits.bits / 8;

  // The inputs of a span that are not zero, and the groups that have any.
  struct Input {
    const std::uint8_t* codes;  // of the first chunk
    float x;
  };
  struct Group {
    std::int32_t end;     // of its inputs
    std::int32_t number;  // in the span
    float minus_x;
  };
  struct Span {
    Input inputs[kSpan];
    Group groups[kGroups];
    std::int32_t count = 0;  // of groups
  };

 public:
  // GgmlKernels::Row
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
        float* const to = y + (c - first) * kChunk;
        V::Chunk out = V::load(to);
        GgmlBlockSums<kFormat> sums;
        const Input* input = span.inputs;
        for (std::int32_t g = 0; g < span.count; ++g) {
          const Group& group = span.groups[g];
          V::Chunk sum = V::zero();
          for (const Input* const end = span.inputs + group.end; input < end; ++input) {
            V::add(sum, input->x,
                   V::input<kTraits.bits, kTraits.offset>(input->codes + (c - first) * kCodeBytes));
          }
          const std::uint8_t* numbers = nullptr;
          if constexpr (kTraits.sub_scales) {
            numbers = memory + layout.pair_at(pair + group.number / 2, c);
          }
          sums.add(V::by_output<kTraits.bits>(sum), numbers, group.number % 2);
          if constexpr (kTraits.minima) {
            sums.add_minimum(group.minus_x, numbers, group.number % 2);
          }
          if constexpr (kGroupsOfBlock == 1) {
            sums.add_to(out, scales_at(layout, memory, block + group.number, c));
          }
        }
        if constexpr (kGroupsOfBlock > 1) sums.add_to(out, scales_at(layout, memory, block, c));
        V::store(out, to);
      }
    }
  }

 private:
  static void collect(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow& h,
                      std::int64_t at, std::int64_t first, Span& span) {
    span.count = 0;
    const std::int64_t group = at / kTraits.group;
    const std::int64_t groups = std::min(kSpan, layout.inputs - at) / kTraits.group;
    const std::int32_t begin = h.starts[group];
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int32_t end = h.starts[group + g + 1];
      if (h.starts[group + g] == end) continue;
      for (std::int32_t i = h.starts[group + g]; i < end; ++i) {
        span.inputs[i - begin] = {memory + layout.code_at(h.fired[i], first), h.x[h.fired[i]]};
      }
      span.groups[span.count++] = {end - begin, static_cast<std::int32_t>(g),
                                   kTraits.minima ? h.sums[group + g] : 0};
    }
  }
};

// Rows with a matrix in either order. Of several rows, a group's codes become f32 once.
template <GgmlFormat kFormat>
class GgmlFloatRows : protected GgmlDense<kFormat> {
 protected:
  using Dense = GgmlDense<kFormat>;
  using typename Dense::Piece;

 private:
  using V = GgmlFloats;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan, kGroups = kSpan / kTraits.group;
  static constexpr std::int64_t kGroupsOfBlock = kTraits.numbers / kTraits.group;

  // What rows that are multiplied together have in a span.
  struct Rows {
    float x[kSpan * V::kRows];         // of an input that is not zero in all of them, x of each row
    std::uint8_t inputs[kSpan];        // which of the group it is
    std::int16_t starts[kGroups + 1];  // where those of a group begin
  };

 public:
  // GgmlKernels::Rows
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* rows,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    const std::int64_t inputs = std::min(kSpan, layout.inputs - at);
    const std::int64_t blocks = inputs / kTraits.numbers;
    const bool turned = layout.order == GgmlOrder::inputs;
    if (count == 1 && !turned) {
      Dense::for_chunks(layout, memory, at, first, last, false, [&](const Piece& piece) {
        V::Chunk out = V::load(y);
        for (std::int64_t b = 0; b < blocks; ++b) add_block(piece, b, *rows, at, out);
        V::store(out, y);
        y += kChunk;
      });
      return;
    }
    Rows spans[kGgmlRows / V::kRows + V::kRows];  // no fewer than for_rows() makes: 130 KB
    Rows* span = spans;
    for_rows(count,
             [&]<int kRows>(std::int64_t r) { collect<kRows>(rows + r, at, inputs, *span++); });
    alignas(64) float sums[kTraits.sub_scales ? kGgmlRows * kChunk : 1];
    Dense::for_chunks(layout, memory, at, first, last, turned, [&](const Piece& piece) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        if constexpr (kTraits.sub_scales) {
          std::fill_n(sums, count * kChunk, 0.0F);
          add_block(piece, b, turned, spans, count, sums);
          for (std::int64_t r = 0; r < count; ++r) {
            finish(piece, b, rows[r], at, sums + r * kChunk, y + r * kChunk);
          }
        } else {
          add_block(piece, b, turned, spans, count, y);
        }
      }
      y += count * kChunk;
    });
  }

 private:
  // f<kRows>(r) for rows [r, r + kRows) of all: as many together as there are vectors for.
  template <int kRows = V::kRows, class F>
  static void for_rows(std::int64_t count, const F& f, std::int64_t first = 0) {
    for (; first + kRows <= count; first += kRows) f.template operator()<kRows>(first);
    if constexpr (kRows > 1) for_rows<kRows / 2>(count, f, first);
  }

  template <int kRows>
  static void collect(const GgmlInputRow* rows, std::int64_t at, std::int64_t inputs, Rows& to) {
    std::int16_t found = 0;
    for (std::int64_t i = 0; i < inputs; ++i) {
      if (i % kTraits.group == 0) to.starts[i / kTraits.group] = found;
      bool some = false;
      for (int r = 0; r < kRows; ++r) {
        const float x = rows[r].x[at + i];
        to.x[found * kRows + r] = x;
        some |= x != 0;
      }
      to.inputs[found] = static_cast<std::uint8_t>(i % kTraits.group);
      if (some) ++found;
    }
    to.starts[inputs / kTraits.group] = found;
  }

  static const std::uint8_t* pair_at(const Piece& piece, std::int64_t group) {
    return piece.pairs + group / 2 * piece.next_pair;
  }

 protected:
  // What the sum of a group is multiplied with: its sub-scale or its block's scale.
  static V::Chunk factor(const Piece& piece, std::int64_t group) {
    if constexpr (kTraits.sub_scales) {
      return V::numbers(sub_scales_of<kFormat>(pair_at(piece, group)), static_cast<int>(group % 2));
    } else {
      return V::scales(piece.scales + group * piece.next_scales);
    }
  }
  template <bool kUnpacked>
  static GgmlQuads::Codes quad(const Piece& piece, std::int64_t at) {
    if constexpr (kUnpacked) return GgmlQuads::stored(piece.codes + at * Dense::kQuadBytes);
    return Dense::load(piece, at);
  }
  // f(i, numbers) for the four inputs of a quad.
  template <class F>
  static void for_inputs(const GgmlQuads::Codes& codes, const F& f) {
    [&]<int... kInputs>(std::integer_sequence<int, kInputs...>) {
      (f(kInputs, V::number<kTraits.bits, Dense::kOffset, kInputs>(codes)), ...);
    }
    (std::make_integer_sequence<int, 4>());
  }

 private:
  // The codes of a group in f32, [inputs][32].
  template <bool kUnpacked>
  static void widen(const Piece& piece, std::int64_t group, float* to) {
    const std::int64_t first = group * Dense::kQuadsOfGroup;
    for (std::int64_t q = first; q < first + Dense::kQuadsOfGroup; ++q, to += 4 * kChunk) {
      for_inputs(quad<kUnpacked>(piece, q),
                 [&](int i, const V::Chunk& numbers) { V::store(numbers, to + i * kChunk); });
    }
  }

  // Adds the sums of a block's groups to those of rows.
  static void add_block(const Piece& piece, std::int64_t block, bool turned, const Rows* spans,
                        std::int64_t count, float* sums) {
    alignas(64) float codes[kTraits.group * kChunk];
    const std::int64_t first = block * kGroupsOfBlock;
    for (std::int64_t g = first; g < first + kGroupsOfBlock; ++g) {
      turned ? widen<true>(piece, g, codes) : widen<false>(piece, g, codes);
      const V::Chunk by = factor(piece, g);
      const Rows* span = spans;
      for_rows(count, [&]<int kRows>(std::int64_t r) {
        add_group<kRows>(*span++, g, codes, by, sums + r * kChunk);
      });
    }
  }
  template <int kRows>
  static void add_group(const Rows& rows, std::int64_t g, const float* codes, const V::Chunk& by,
                        float* to) {
    V::Chunk sums[kRows];
    for (auto& sum : sums) sum = V::zero();
    for (std::int16_t k = rows.starts[g]; k < rows.starts[g + 1]; ++k) {
      const V::Chunk numbers = V::load(codes + rows.inputs[k] * kChunk);
      for (int r = 0; r < kRows; ++r) V::add(sums[r], rows.x[k * kRows + r], numbers);
    }
    for (int r = 0; r < kRows; ++r) add_scaled(to + r * kChunk, sums[r], by);
  }

 protected:
  static void add_scaled(float* to, const V::Chunk& sum, const V::Chunk& by) {
    V::Chunk out = V::load(to);
    V::add(out, sum, by);
    V::store(out, to);
  }
  // y of a row += a block's sums with its scales.
  static void finish(const Piece& piece, std::int64_t block, const GgmlInputRow& row,
                     std::int64_t at, const float* plus, float* y) {
    GgmlBlockSums<kFormat> sums;
    sums.plus = V::load(plus);
    const std::int64_t first = block * kGroupsOfBlock;
    for (std::int64_t g = first; kTraits.minima && g < first + kGroupsOfBlock; ++g) {
      sums.add_minimum(row.sums[at / kTraits.group + g], pair_at(piece, g),
                       static_cast<int>(g % 2));
    }
    V::Chunk out = V::load(y);
    sums.add_to(out, piece.scales + block * piece.next_scales);
    V::store(out, y);
  }

 private:
  // Adds a block to the outputs of one row.
  static void add_block(const Piece& piece, std::int64_t block, const GgmlInputRow& row,
                        std::int64_t at, V::Chunk& y) {
    GgmlBlockSums<kFormat> sums;
    const std::int64_t first = block * kGroupsOfBlock;
    for (std::int64_t g = first; g < first + kGroupsOfBlock; ++g) {
      V::Chunk sum = V::zero();
      for (std::int64_t q = g * Dense::kQuadsOfGroup; q < (g + 1) * Dense::kQuadsOfGroup; ++q) {
        const float* const x = row.x + at + 4 * q;
        for_inputs(quad<false>(piece, q),
                   [&](int i, const V::Chunk& numbers) { V::add(sum, x[i], numbers); });
      }
      const std::uint8_t* const pair = pair_at(piece, g);
      const int side = static_cast<int>(g % 2);
      sums.add(sum, pair, side);
      if constexpr (kTraits.minima) {
        sums.add_minimum(row.sums[at / kTraits.group + g], pair, side);
      }
    }
    sums.add_to(y, piece.scales + block * piece.next_scales);
  }
};

}  // namespace
}  // namespace twell
