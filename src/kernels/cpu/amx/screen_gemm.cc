// The screen's GEMM on AMX-INT8: twice as many inputs a cycle as bf16.
//
// A step of 32 rows × 2 panels × 512 inputs is 512 cycles, and moves as much as a step in bf16.
// Each 256 inputs have scales of their own, so that the integer sums of the two halves are scaled
// and added to c with vectors: 600 instructions, issued after the next step's first half, so that
// they run while its tiles multiply.
#include <immintrin.h>

#include "kernels/cpu/amx/sweep.h"
#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/common/gemm.h"
#include "kernels/cpu/kernels.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kDepthTile = 64;  // inputs
constexpr std::int64_t kHalves = 2;      // of a step's depth: blocks of the screen
static_assert(kCodeBlock == TileOrder::kInputs);
constexpr std::int64_t kBlockBytes = kPanel * (kCodeBlock + kCodeHead);
constexpr std::int64_t kHeadBytes = kPanel * kCodeHead;

// What a step leaves for vectors to do.
struct Sums {
  alignas(64) std::int32_t of[kHalves][2 * kGroupRows][kPanel];  // [half][panel, row]
};
struct Pending {
  const Sums* sums = nullptr;
  std::int64_t rows = 0, panels = 0, halves = 0;
  const std::byte* screen = nullptr;  // the pair's panel and block
  std::int64_t stride = 0;            // from panel to panel
  const float* scales = nullptr;      // of the first row and block
  std::int64_t blocks = 0;            // from row to row
  float* c = nullptr;
  bool accumulate = false;

  // c (+)= scale · (sum − 128 Σ q), half by half.
  void finish() const {
    for (std::int64_t p = 0; p < panels; ++p) {
      __m512i begin[kHalves];
      for (std::int64_t h = 0; h < halves; ++h) {
        const std::byte* head = screen + p * stride + h * kBlockBytes;
        begin[h] = avx512::Isa::screen_begin(reinterpret_cast<const std::int8_t*>(head));
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        float* to = c + r * kSumStride + p * kPanel;
        __m512 sum = accumulate ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
        for (std::int64_t h = 0; h < halves; ++h) {
          const __m512i part = _mm512_load_si512(sums->of[h][p * kGroupRows + r]);
          sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(part, begin[h])),
                                _mm512_set1_ps(scales[r * blocks + h]), sum);
        }
        _mm512_storeu_ps(to, sum);
      }
    }
  }
};

// Rows [begin, end) in groups of `group`, all panels, all depth.
template <int RowTiles>
void sweep(const ScreenGemmArgs& args, std::int64_t begin, std::int64_t end, std::int64_t group) {
  const std::int64_t cols = args.screen.cols;
  const std::int64_t stride = code_panel_bytes(cols);
  const std::int64_t depth = code_depth(cols);
  const std::int64_t blocks = code_blocks(cols);
  const auto* screen = reinterpret_cast<const std::byte*>(args.screen.panel(args.panel_begin));
  const std::int64_t panels_there = packed_panels(args.screen.rows) - args.panel_begin;
  const Rows rows = {reinterpret_cast<const std::byte*>(args.x.x8), 1, depth, args.x.x_block};
  const std::int64_t groups = (end - begin + group - 1) / group;
  const auto tiles_of = [&](std::int64_t block) {
    return (std::min((block + 1) * kCodeBlock, depth) - block * kCodeBlock) / kDepthTile;
  };
  const auto bytes_of = [&](std::int64_t b) {  // of a panel, from a pair of blocks on
    const std::int64_t inputs = std::min(kHalves * kCodeBlock, depth - b * kCodeBlock);
    return kPanel * (inputs + kHalves * kCodeHead);
  };
  Sums sums;  // of `before`, until its sums are used
  Pending before;
  const auto panel_at = [&](PanelBlock at) {
    return screen + at.panel * stride + at.block * kBlockBytes;
  };
  const auto multiply = []<int C, int A, int B>() { tile_dpbusd<C, A, B>(); };
  for_panel_blocks<2>(
      args.panels, (blocks + kHalves - 1) / kHalves, groups == 1,
      [&]<int Panels>(PanelBlock at, PanelBlock next) {
        at.block *= kHalves;
        next.block *= kHalves;
        const std::int64_t halves = std::min(kHalves, blocks - at.block);
        std::int64_t depth_tiles = 0;
        for (std::int64_t h = 0; h < halves; ++h) depth_tiles += tiles_of(at.block + h);
        const std::int64_t next_panels = std::min<std::int64_t>(2, panels_there - next.panel);
        Ahead ahead(next_panels > 0 ? panel_at(next) : nullptr, stride, next_panels,
                    bytes_of(next.block), groups * depth_tiles);
        for (std::int64_t r = begin; r < end; r += group) {
          for (std::int64_t h = 0; h < halves; ++h) {
            const std::int64_t b = at.block + h;
            for_accumulators<RowTiles, Panels>([]<int Tile, int, int>() { tile_zero<Tile>(); });
            multiply_tiles<RowTiles, Panels>(rows.at(r, b), panel_at({at.panel, b}) + kHeadBytes,
                                             stride, tiles_of(b), multiply, ahead);
            if (h == 0) before.finish();
            for_accumulators<RowTiles, Panels>([&]<int Tile, int RowTile, int Panel>() {
              tile_store<Tile>(sums.of[h][Panel * kGroupRows + RowTile * kTileRows], kLine);
            });
          }
          before = {&sums,
                    std::min(group, end - r),
                    Panels,
                    halves,
                    panel_at(at),
                    stride,
                    args.x.scales + r * blocks + at.block,
                    blocks,
                    args.c + r * kSumStride + at.panel * kPanel,
                    at.block > 0};
        }
      });
  before.finish();
}

}  // namespace

void screen_gemm(const ScreenGemmArgs& args) {
  if (args.x.x_block == 0) {
    RegisterGemm<avx512::Isa, std::int8_t>::run_screen(args);
    return;
  }
  for_row_groups(args.rows,
                 [&]<int RowTiles>(std::int64_t begin, std::int64_t end, std::int64_t group) {
                   sweep<RowTiles>(args, begin, end, group);
                 });
}

}  // namespace twell::amx
