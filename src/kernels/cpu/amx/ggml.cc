// The product of many rows with all of a GgmlMatrix on AMX-INT8.
//
// A step multiplies 16 rows with a span of 16 outputs. Each group of 32 inputs has a sub-scale or a
// scale of its own, and so a tile of sums, which takes half of a tile's inputs. Vectors scale and
// add the tiles of a step while those of the next are multiplied, and take most of the time: two
// instructions a row and group, or three. Sums of sub-scaled sums are f32 as long as that holds the
// integers, so that results have the same bits as those of AVX-512. 64 rows of one thread: 203 to
// 236 · 10⁹ products a second, where AVX-512 has 155 to 168 (bench/results/2026-11-30-gguf-amx).
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/common/ggml_dense.h"
#include "kernels/cpu/kernels.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kTileRows = 16, kOutputs = 16, kHalves = kChunk / kOutputs;
// Fewer are as fast in vectors.
constexpr std::int64_t kFewestRows = 16;

template <GgmlFormat kFormat>
class GgmlTiles : GgmlDense<kFormat> {
  using Dense = GgmlDense<kFormat>;
  using Dense::kSpan, Dense::kTraits, Dense::kQuadBytes, Dense::kQuadsOfGroup;
  using typename Dense::Piece;
  using typename Dense::V;
  static constexpr std::int64_t kGroup = kTraits.group, kGroups = kSpan / kGroup;
  static constexpr std::int64_t kBlocks = kSpan / kTraits.numbers;
  static constexpr std::int64_t kPairs = kSpan / 64;  // of groups with sub-minima
  // Groups whose scaled sums f32 holds together.
  static constexpr std::int64_t exact_groups() {
    const std::int64_t code = kTraits.offset > 0 ? kTraits.offset : (1 << kTraits.bits) - 1;
    const std::int64_t scaled = kGroup * 127 * code * (kTraits.minima ? 63 : 128);
    std::int64_t groups = 1;
    while (2 * groups * scaled <= 1 << 24) groups *= 2;
    return groups;
  }

  // What rows have in a span; those past the last are zero.
  struct Rows {
    alignas(64) std::int8_t q[kGgmlRows][kSpan];
    float units[kGgmlRows][kBlocks];
    std::int32_t sums[kGgmlRows][kPairs];  // Σ q of two groups, of 16 bits
  };
  // What a chunk has, by halves of its outputs.
  struct Scales {
    alignas(64) float scales[kHalves][kBlocks][kOutputs];
    alignas(64) float sub_scales[kHalves][kGroups][kOutputs];
    alignas(64) float minima[kHalves][kOutputs];
    alignas(64) std::uint8_t sub_minima[kHalves][kPairs][2 * kOutputs];
  };
  // What tiles leave for vectors to do.
  struct Step {
    alignas(64) std::int32_t sums[kTileRows][kGroups][kOutputs];
    const Scales* scales;
    std::int64_t half, first, rows = 0;  // of Rows, from the first on
    float* y;                            // of that row
  };

 public:
  static void run(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow* x,
                  std::int64_t count, std::int64_t at, std::int64_t first, std::int64_t last,
                  float* y) {
    if (count < kFewestRows) return Dense::run(layout, memory, x, count, at, first, last, y);
    const std::int64_t groups = std::min(kSpan, layout.inputs - at) / kGroup;
    Rows rows;
    collect(x, count, at, groups, rows);
    load_config(config());
    Scales scales[2];  // of a chunk, and of the one before it, whose last step is to be finished
    Step steps[2];
    int chunk = 0, turn = 0;
    Dense::for_chunks(layout, memory, at, first, last, true, [&](const Piece& piece) {
      make_signed(piece.codes, groups);
      Scales& own = scales[chunk++ % 2];
      take(piece, groups, own);
      for (std::int64_t half = 0; half < kHalves; ++half) {
        for (std::int64_t row = 0; row < count; row += kTileRows) {
          Step& step = steps[turn % 2];
          step.scales = &own;
          step.half = half;
          step.first = row;
          step.rows = std::min(kTileRows, count - row);
          step.y = y + row * kChunk + half * kOutputs;
          multiply(rows, piece.codes, groups, step, steps[(turn + 1) % 2]);
          ++turn;
        }
      }
      y += count * kChunk;
    });
    const Step& step = steps[(turn + 1) % 2];
    for (std::int64_t r = 0; r < step.rows; ++r) finish(rows, groups, step, r);
    release();
  }

 private:
  // Tiles 0 to 3 hold sums, of groups one after the other, 4 and 5 rows, 6 and 7 codes.
  static TileConfig config() {
    TileConfig out;
    for (int tile = 0; tile < 8; ++tile) {
      out.rows[tile] = tile < 6 ? kTileRows : kQuadsOfGroup;
      out.row_bytes[tile] = tile == 4 || tile == 5 ? kGroup : 64;
    }
    return out;
  }

  static void collect(const GgmlInputRow* x, std::int64_t count, std::int64_t at,
                      std::int64_t groups, Rows& rows) {
    const std::int64_t inputs = groups * kGroup, blocks = inputs / kTraits.numbers;
    for (std::int64_t r = 0; r < count; ++r) {
      std::memcpy(rows.q[r], x[r].codes + at, static_cast<std::size_t>(inputs));
      std::copy_n(x[r].units + at / kTraits.numbers, blocks, rows.units[r]);
      for (std::int64_t p = 0; kTraits.minima && p < kPairs; ++p) {
        rows.sums[r][p] = sums_of_groups(rows.q[r] + 64 * p);
      }
    }
    const std::int64_t end = (count + kTileRows - 1) / kTileRows * kTileRows;
    std::memset(rows.q + count, 0, static_cast<std::size_t>((end - count) * kSpan));
  }
  // Less their offset.
  static void make_signed(std::uint8_t* codes, std::int64_t groups) {
    if constexpr (Dense::kOffset > 0) {
      const __m512i offset = _mm512_set1_epi8(static_cast<char>(Dense::kOffset));
      for (std::int64_t i = 0; i < groups * kQuadsOfGroup * kQuadBytes; i += 64) {
        _mm512_store_si512(codes + i, _mm512_sub_epi8(_mm512_load_si512(codes + i), offset));
      }
    }
  }
  static void take(const Piece& piece, std::int64_t groups, Scales& to) {
    for (std::int64_t half = 0; half < kHalves; ++half) {
      const auto halves = [&](std::int64_t block, std::int64_t first) {
        const auto* const from = piece.scales + block * piece.next_scales + first + half * kOutputs;
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      };
      for (std::int64_t b = 0; b < groups * kGroup / kTraits.numbers; ++b) {
        _mm512_store_ps(to.scales[half][b], halves(b, 0));
      }
      if constexpr (kTraits.minima) _mm512_store_ps(to.minima[half], halves(0, kChunk));
    }
    if constexpr (kTraits.sub_scales) {
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::uint8_t* const pair = piece.pairs + g / 2 * piece.next_pair;
        const auto numbers = V::numbers(sub_scales_of<kFormat>(pair), static_cast<int>(g % 2));
        for (std::int64_t half = 0; half < kHalves; ++half) {
          _mm512_store_ps(to.sub_scales[half][g], _mm512_cvtepi32_ps(numbers.of[half]));
          if constexpr (kTraits.minima) {
            std::memcpy(to.sub_minima[half][g / 2], pair + 2 * kChunk + half * 2 * kOutputs,
                        2 * kOutputs);
          }
        }
      }
    }
  }

  // The tiles of a step, while the rows of the one before it are finished.
  static void multiply(const Rows& rows, const std::uint8_t* codes, std::int64_t groups, Step& step,
                       const Step& before) {
    const std::int64_t rows_a_group = (kTileRows + groups - 1) / groups;
    const auto* const q = rows.q[step.first];
    const std::uint8_t* const of_half = codes + step.half * 64;
    std::int64_t row = 0;
    const auto one = [&]<int kTile>(std::int64_t g) {
      tile_zero<kTile>();
      tile_load<4 + kTile % 2>(q + g * kGroup, kSpan);
      tile_load<6 + kTile % 2>(of_half + g * kQuadsOfGroup * kQuadBytes, kQuadBytes);
      tile_dpbssd<kTile, 4 + kTile % 2, 6 + kTile % 2>();
      tile_store<kTile>(step.sums[0][g], kGroups * 64);
      const std::int64_t end = std::min(row + rows_a_group, before.rows);
      for (; row < end; ++row) finish(rows, groups, before, row);
    };
    for (std::int64_t g = 0; g < groups; g += 4) {
      one.template operator()<0>(g);
      if (g + 1 < groups) one.template operator()<1>(g + 1);
      if (g + 2 < groups) one.template operator()<2>(g + 2);
      if (g + 3 < groups) one.template operator()<3>(g + 3);
    }
  }

  // Row r of a step.
  static void finish(const Rows& rows, std::int64_t groups, const Step& step, std::int64_t r) {
    const Scales& by = *step.scales;
    const std::int64_t half = step.half, row = step.first + r;
    const auto scaled = [&](__m512 sum, float unit, const float* scale, __m512i by_it) {
      const __m512 product = _mm512_mul_ps(_mm512_set1_ps(unit), _mm512_load_ps(scale));
      return _mm512_fmadd_ps(product, _mm512_cvtepi32_ps(by_it), sum);
    };
    float* const to = step.y + r * kChunk;
    __m512 y = _mm512_loadu_ps(to);
    if constexpr (kTraits.sub_scales) {
      __m512i sum = _mm512_setzero_si512();
      for (std::int64_t g = 0; g < kGroups; g += exact_groups()) {
        __m512 some = _mm512_setzero_ps();
        for (std::int64_t i = g; i < g + exact_groups(); ++i) {
          some = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(step.sums[r][i])),
                                 _mm512_load_ps(by.sub_scales[half][i]), some);
        }
        sum = _mm512_add_epi32(sum, _mm512_cvtps_epi32(some));
      }
      y = scaled(y, rows.units[row][0], by.scales[half][0], sum);
    } else {
      for (std::int64_t g = 0; g < groups; ++g) {
        y = scaled(y, rows.units[row][g], by.scales[half][g], _mm512_load_si512(step.sums[r][g]));
      }
    }
    if constexpr (kTraits.minima) {
      __m512i sum = _mm512_setzero_si512();
      for (std::int64_t p = 0; p < kPairs; ++p) {
        const __m512i words = _mm512_cvtepu8_epi16(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(by.sub_minima[half][p])));
        const __m512i two = _mm512_set1_epi32(rows.sums[row][p]);
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(two, words));
      }
      y = scaled(y, -rows.units[row][0], by.minima[half], sum);
    }
    _mm512_storeu_ps(to, y);
  }
};

template <GgmlFormat kFormat>
constexpr GgmlDenseRows make_dense_rows() {
  // Shares at which GgmlTile takes as long, with 256 rows, 2560 outputs and 4608 inputs. A scale
  // for each 32 inputs costs it more than it costs tiles.
  return {GgmlTiles<kFormat>::run, traits_of(kFormat).sub_scales ? 0.05 : 0.017};
}

}  // namespace

// Groups of 16 leave a quarter of a tile's inputs, and vectors are faster for Q6_K. Its share is
// that of AVX-512 on processors that have AMX.
constinit const std::array<GgmlDenseRows, kGgmlFormats> ggml_dense_rows = {
    make_dense_rows<GgmlFormat::q4_0>(), make_dense_rows<GgmlFormat::q5_0>(),
    make_dense_rows<GgmlFormat::q8_0>(), make_dense_rows<GgmlFormat::q4_k>(),
    make_dense_rows<GgmlFormat::q5_k>(), GgmlDenseRows{nullptr, 0.12}};

}  // namespace twell::amx
