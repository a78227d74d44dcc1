// The GEMM on AMX-BF16: 32 rows × 2 panels per step, four accumulator tiles.
//
// Blocking: 256 inputs of two panels are 16 KiB of L1 while the row groups go by; the rows of x and
// the f32 accumulators of a column block come from L2. Per 512 cycles of tile multiplication (32 ×
// 16) a step moves 16 KiB of x from L2 and 8 KiB of accumulators. In a model of the caches (LRU, 48
// KiB and 2 MiB) with D = 2048 that is 50 bytes a cycle from L2, and from L3 8 at 1024 rows of x
// that are spread, 35 at rows as they come.
#include "kernels/cpu/common/gemm.h"

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileDepth = 32;  // bf16 inputs of one tile multiplication
constexpr std::int64_t kDepthBlock = 256;

// Tiles 0-3 accumulate (row tile, panel), 4-5 hold x, 6-7 the panels.
TileConfig config_for(std::int64_t first_rows, std::int64_t second_rows) {
  TileConfig config;
  const auto set = [&](int tile, std::int64_t rows) {
    config.rows[tile] = static_cast<std::uint8_t>(rows);
    config.row_bytes[tile] = rows > 0 ? 64 : 0;
  };
  for (int tile : {0, 1, 4}) set(tile, first_rows);
  for (int tile : {2, 3, 5}) set(tile, second_rows);
  for (int tile : {6, 7}) set(tile, kTileRows);
  return config;
}

struct Step {
  const bf16* x;
  std::int64_t x_stride;
  const bf16* panel;
  std::int64_t panel_stride;
  std::int64_t depth;  // multiple of 32
  float* c;
  bool accumulate;
};

template <int Tile>
void begin(float* c, bool accumulate) {
  if (accumulate) {
    tile_load<Tile>(c, kColumnBlock * 4);
  } else {
    tile_zero<Tile>();
  }
}

template <int RowTiles, int Panels>
void micro(const Step& s) {
  constexpr std::int64_t kRowsDown = kTileRows * kColumnBlock;
  begin<0>(s.c, s.accumulate);
  if constexpr (Panels == 2) begin<1>(s.c + kPanel, s.accumulate);
  if constexpr (RowTiles == 2) begin<2>(s.c + kRowsDown, s.accumulate);
  if constexpr (RowTiles == 2 && Panels == 2) begin<3>(s.c + kRowsDown + kPanel, s.accumulate);
  for (std::int64_t k = 0; k < s.depth; k += kTileDepth) {
    tile_load<4>(s.x + k, s.x_stride * 2);
    tile_load<6>(s.panel + k * kPanel, 64);
    tile_dpbf16<0, 4, 6>();
    if constexpr (Panels == 2) {
      tile_load<7>(s.panel + s.panel_stride + k * kPanel, 64);
      tile_dpbf16<1, 4, 7>();
    }
    if constexpr (RowTiles == 2) {
      tile_load<5>(s.x + kTileRows * s.x_stride + k, s.x_stride * 2);
      tile_dpbf16<2, 5, 6>();
    }
    if constexpr (RowTiles == 2 && Panels == 2) tile_dpbf16<3, 5, 7>();
  }
  tile_store<0>(s.c, kColumnBlock * 4);
  if constexpr (Panels == 2) tile_store<1>(s.c + kPanel, kColumnBlock * 4);
  if constexpr (RowTiles == 2) tile_store<2>(s.c + kRowsDown, kColumnBlock * 4);
  if constexpr (RowTiles == 2 && Panels == 2) {
    tile_store<3>(s.c + kRowsDown + kPanel, kColumnBlock * 4);
  }
}

// Rows [begin, end) in groups of `group` rows (two row tiles, or one), all panels, all depth.
template <int RowTiles>
void sweep(const GemmArgs& args, std::int64_t begin, std::int64_t end, std::int64_t group) {
  const std::int64_t depth = packed_depth(DType::bf16, args.weight.cols);
  const std::int64_t stride = depth * kPanel;
  const bf16* weight = static_cast<const bf16*>(args.weight.data) + args.panel_begin * stride;
  const bf16* x = static_cast<const bf16*>(args.x);
  for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
    const std::int64_t now = std::min(kDepthBlock, depth - k);
    for (std::int64_t p = 0; p < args.panels; p += 2) {
      for (std::int64_t r = begin; r < end; r += group) {
        const Step step = {x + r * args.x_stride + k,
                           args.x_stride,
                           weight + p * stride + k * kPanel,
                           stride,
                           now,
                           args.c + r * kColumnBlock + p * kPanel,
                           args.accumulate || k > 0};
        if (p + 1 < args.panels) {
          micro<RowTiles, 2>(step);
        } else {
          micro<RowTiles, 1>(step);
        }
      }
    }
  }
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.rows <= kVectorRows) {
    RegisterGemm<avx512::Isa, bf16>::run(args);
    return;
  }
  const std::int64_t full = args.rows / (2 * kTileRows) * (2 * kTileRows);
  const std::int64_t rest = args.rows - full;
  if (full > 0) {
    load_config(config_for(kTileRows, kTileRows));
    sweep<2>(args, 0, full, 2 * kTileRows);
  }
  if (rest > kTileRows) {
    load_config(config_for(kTileRows, rest - kTileRows));
    sweep<2>(args, full, args.rows, rest);
  } else if (rest > 0) {
    load_config(config_for(rest, 0));
    sweep<1>(args, full, args.rows, rest);
  }
  release();
}

}  // namespace twell::amx
