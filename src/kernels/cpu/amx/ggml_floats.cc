// The product of many rows of f32 with all of a GgmlMatrix on AMX-BF16.
//
// x is the sum of three bf16, exactly but for what lies below 2⁻¹²⁶, and a code is one. Tiles
// add the products of a group's three terms, the smallest first, and vectors do the rest, for the
// group before. 64 rows of one thread: see bench/results/2026-12-01-gguf-exact.
#include "kernels/cpu/common/ggml_floats.h"

#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/kernels.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kTileRows = 16, kOutputs = 16, kHalves = kChunk / kOutputs;
constexpr std::int64_t kTerms = 3;
// Fewer are as fast in vectors.
constexpr std::int64_t kFewestRows = 12;

template <GgmlFormat kFormat>
class GgmlFloatTiles : GgmlFloatRows<kFormat> {
  using FloatRows = GgmlFloatRows<kFormat>;
  using Dense = GgmlDense<kFormat>;
  using typename Dense::Piece;
  using V = GgmlFloats;
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan, kGroup = kTraits.group;
  static constexpr std::int64_t kGroups = kSpan / kGroup;

  // Terms of rows, the largest first: tiles of a group and 16 rows. Rows past the last are zero.
  struct Terms {
    alignas(64) std::uint16_t of[kTerms][kGroups][kGgmlRows][kGroup];
  };
  // The codes of a group in bf16: pairs of inputs, of half a chunk each.
  struct Codes {
    alignas(64) std::uint32_t pairs[kHalves][kGroup / 2][kOutputs];
  };
  // What tiles leave for vectors to do: sums of a group.
  struct Step {
    alignas(64) float sums[kGgmlRows][kChunk];
    V::Chunk by;
    std::int64_t rows = 0;
  };

 public:
  // GgmlKernels::Rows
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* x,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    if (count < kFewestRows) return FloatRows::run(layout, memory, x, count, at, first, last, y);
    const std::int64_t inputs = std::min(kSpan, layout.inputs - at);
    const bool turned = layout.order == GgmlOrder::inputs;
    const std::int64_t groups = inputs / kGroup;
    Terms terms;
    split(x, count, at, groups, terms);
    load_config(config());
    alignas(64) float sums[kTraits.sub_scales ? kGgmlRows * kChunk : 1];
    Step steps[2];
    Codes codes;
    Dense::for_chunks(layout, memory, at, first, last, turned, [&](const Piece& piece) {
      float* const to = kTraits.sub_scales ? sums : y;
      if constexpr (kTraits.sub_scales) std::fill_n(sums, count * kChunk, 0.0F);
      steps[1].rows = 0;  // nothing is before the first
      for (std::int64_t g = 0; g < groups; ++g) {
        turned ? pair<true>(piece, g, codes) : pair<false>(piece, g, codes);
        Step& step = steps[g % 2];
        step.by = FloatRows::factor(piece, g);
        step.rows = count;
        for (std::int64_t row = 0; row < count; row += kTileRows) {
          multiply(terms, g, row, codes, step);
          finish(steps[(g + 1) % 2], row, to);
        }
      }
      for (std::int64_t row = 0; row < count; row += kTileRows) {
        finish(steps[(groups + 1) % 2], row, to);
      }
      if constexpr (kTraits.sub_scales) {
        for (std::int64_t r = 0; r < count; ++r) {
          FloatRows::finish(piece, 0, x[r], at, sums + r * kChunk, y + r * kChunk);
        }
      }
      y += count * kChunk;
    });
    release();
  }

 private:
  // Tiles 0 to 3 hold sums of 16 rows, of either half by turns, 4 and 5 terms, 6 and 7 codes.
  static TileConfig config() {
    TileConfig out;
    for (int tile = 0; tile < 8; ++tile) {
      out.rows[tile] = tile < 6 ? kTileRows : kGroup / 2;
      out.row_bytes[tile] = tile == 4 || tile == 5 ? 2 * kGroup : 64;
    }
    return out;
  }

  static void split(const GgmlInputRow* x, std::int64_t count, std::int64_t at, std::int64_t groups,
                    Terms& to) {
    const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t i = 0; i < kGroup; i += 16) {
          __m512 left = _mm512_loadu_ps(x[r].x + at + g * kGroup + i);
          for (auto& term : to.of) {
            const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(left));
            _mm256_store_si256(reinterpret_cast<__m256i*>(term[g][r] + i), rounded);
            const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
            left = _mm512_sub_ps(left, _mm512_castsi512_ps(wide));
          }
        }
      }
      for (auto& term : to.of) std::fill(term[g][count], term[g][rows], std::uint16_t{0});
    }
  }
  template <bool kUnpacked>
  static void pair(const Piece& piece, std::int64_t g, Codes& to) {
    for (std::int64_t q = 0; q < Dense::kQuadsOfGroup; ++q) {
      __m512 numbers[kHalves][4];
      FloatRows::for_inputs(
          FloatRows::template quad<kUnpacked>(piece, g * Dense::kQuadsOfGroup + q),
          [&](int i, const V::Chunk& of) {
            for (std::int64_t half = 0; half < kHalves; ++half) numbers[half][i] = of.of[half];
          });
      for (std::int64_t half = 0; half < kHalves; ++half) {
        for (std::int64_t p = 0; p < 2; ++p) {
          const __m512i first = _mm512_castps_si512(numbers[half][2 * p]);
          const __m512i second = _mm512_castps_si512(numbers[half][2 * p + 1]);
          _mm512_store_si512(
              to.pairs[half][2 * q + p],
              _mm512_mask_mov_epi16(_mm512_srli_epi32(first, 16), 0xAAAAAAAA, second));
        }
      }
    }
  }

  // Sixteen rows.
  static void multiply(const Terms& terms, std::int64_t g, std::int64_t row, const Codes& codes,
                       Step& step) {
    tile_load<6>(codes.pairs[0], 64);
    tile_load<7>(codes.pairs[1], 64);
    const auto both = [&]<int kFirst>() {
      const auto add = [&]<int kTerm>(std::int64_t term) {
        tile_load<kTerm>(terms.of[term][g][row], 2 * kGroup);
        tile_dpbf16<kFirst, kTerm, 6>();
        tile_dpbf16<kFirst + 1, kTerm, 7>();
      };
      tile_zero<kFirst>();
      tile_zero<kFirst + 1>();
      add.template operator()<4>(2);
      add.template operator()<5>(1);
      add.template operator()<4>(0);
      tile_store<kFirst>(step.sums[row], sizeof step.sums[0]);
      tile_store<kFirst + 1>(step.sums[row] + kOutputs, sizeof step.sums[0]);
    };
    if (row / kTileRows % 2 == 0) {
      both.template operator()<0>();
    } else {
      both.template operator()<2>();
    }
  }
  static void finish(const Step& step, std::int64_t first, float* to) {
    for (std::int64_t r = first; r < std::min(first + kTileRows, step.rows); ++r) {
      FloatRows::add_scaled(to + r * kChunk, V::load(step.sums[r]), step.by);
    }
  }
};

}  // namespace

constinit const std::array<GgmlKernels::Rows*, kGgmlFormats> ggml_float_rows = {
    GgmlFloatTiles<GgmlFormat::q4_0>::run, GgmlFloatTiles<GgmlFormat::q5_0>::run,
    GgmlFloatTiles<GgmlFormat::q8_0>::run, GgmlFloatTiles<GgmlFormat::q4_k>::run,
    GgmlFloatTiles<GgmlFormat::q5_k>::run, GgmlFloatTiles<GgmlFormat::q6_k>::run};

}  // namespace twell::amx
