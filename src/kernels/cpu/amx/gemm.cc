// The GEMM on AMX-BF16.
//
// A step of 32 rows × 2 panels × 256 inputs is 512 cycles of tile multiplication. It moves 16 KB of
// x and 8 KB of accumulators from and to L2, 48 bytes a cycle, which is what L2 gives: so blocks of
// rows stay in L2 (for_row_groups()), and tiles run at half of their peak.
#include "kernels/cpu/amx/sweep.h"
#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/common/code_gemm.h"
#include "kernels/cpu/kernels.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kDepthTile = 32;  // inputs
constexpr std::int64_t kDepth = TileOrder::kInputs;
constexpr std::int64_t kAccumulatorRow = kSumStride * static_cast<std::int64_t>(sizeof(float));

template <int RowTiles, int Panels>
void step(const StepRows& x, const std::byte* panel, std::int64_t panel_stride,
          std::int64_t depth_tiles, float* c, bool accumulate, Ahead& ahead) {
  const auto at = [=](int row_tile, int p) {
    return c + row_tile * kTileRows * kSumStride + p * kPanel;
  };
  for_accumulators<RowTiles, Panels>([&]<int Tile, int RowTile, int Panel>() {
    if (accumulate) {
      tile_load<Tile>(at(RowTile, Panel), kAccumulatorRow);
    } else {
      tile_zero<Tile>();
    }
  });
  const auto multiply = []<int C, int A, int B>() { tile_dpbf16<C, A, B>(); };
  multiply_tiles<RowTiles, Panels>(x, panel, panel_stride, depth_tiles, multiply, ahead);
  for_accumulators<RowTiles, Panels>([&]<int Tile, int RowTile, int Panel>() {
    tile_store<Tile>(at(RowTile, Panel), kAccumulatorRow);
  });
}

// Rows [begin, end) in groups of `group`, all panels, all depth.
template <int RowTiles>
void sweep(const GemmArgs& args, std::int64_t begin, std::int64_t end, std::int64_t group) {
  constexpr std::int64_t kElement = sizeof(bf16);
  const std::int64_t depth = packed_depth(WeightType::bf16, args.weight.cols);
  const std::int64_t stride = depth * kPanel * kElement;
  const auto* weight = static_cast<const std::byte*>(args.weight.data) + args.panel_begin * stride;
  const std::int64_t panels_there = packed_panels(args.weight.rows) - args.panel_begin;
  const Rows rows = {static_cast<const std::byte*>(args.x), kElement, args.x_stride, args.x_block};
  const std::int64_t groups = (end - begin + group - 1) / group;
  const auto tiles_of = [&](std::int64_t block) {
    return (std::min((block + 1) * kDepth, depth) - block * kDepth) / kDepthTile;
  };
  const auto panel_at = [&](PanelBlock at) {
    return weight + at.panel * stride + at.block * kDepth * kPanel * kElement;
  };
  for_panel_blocks<2>(
      args.panels, TileOrder::blocks(depth), groups == 1,
      [&]<int Panels>(PanelBlock at, PanelBlock next) {
        const std::int64_t next_panels = std::min<std::int64_t>(2, panels_there - next.panel);
        Ahead ahead(next_panels > 0 ? panel_at(next) : nullptr, stride, next_panels,
                    tiles_of(next.block) * kTileBytes, groups * tiles_of(at.block));
        for (std::int64_t r = begin; r < end; r += group) {
          step<RowTiles, Panels>(rows.at(r, at.block), panel_at(at), stride, tiles_of(at.block),
                                 args.c + r * kSumStride + at.panel * kPanel,
                                 args.accumulate || at.block > 0, ahead);
        }
      });
}

template <WeightType kType>
void code_gemm(const GemmArgs& args) {
  CodeGemm<avx512::Isa, bf16, CodesOf<avx512::Isa, kType>>::run(args, gemm);
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.rows <= kVectorRows && args.x_block == 0) {
    RegisterGemm<avx512::Isa, bf16>::run(args);
    return;
  }
  for_row_groups(args.rows,
                 [&]<int RowTiles>(std::int64_t begin, std::int64_t end, std::int64_t group) {
                   sweep<RowTiles>(args, begin, end, group);
                 });
}

constinit const ByWeight<Gemm> gemms = by_weight<Gemm, DType::bf16>([]<WeightType kType>() -> Gemm {
  if constexpr (has_scales(kType)) return code_gemm<kType>;
  return gemm;
});

}  // namespace twell::amx
