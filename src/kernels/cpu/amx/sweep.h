// How the GEMMs on tiles go through a column block: 32 rows × 2 panels a step, four accumulators.
//
// A block of two panels, 256 bf16 or 512 int8 inputs deep, is 16 KB of L1 while the rows go by.
// The rows' part of x, 16 KB a step, and the accumulators, 4 KB in and out, come from L2; the next
// block of panels, which may be in L3, is brought to L2 meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/amx/tile_config.h"
#include "kernels/cpu/common/panel_blocks.h"
#include "kernels/kernel.h"

namespace twell::amx {
namespace {

constexpr std::int64_t kTileRows = TileOrder::kRows;
constexpr std::int64_t kGroupRows = 2 * kTileRows;
constexpr std::int64_t kTileBytes = TileOrder::kTile;  // of x, and of a panel's 16 neurons
constexpr std::int64_t kLine = 64;

// Tiles 0-3 accumulate (row tile, panel), 4-5 hold x, 6-7 the panels.
inline TileConfig config_for(std::int64_t first_rows, std::int64_t second_rows) {
  TileConfig config;
  const auto set = [&](int tile, std::int64_t rows) {
    config.rows[tile] = static_cast<std::uint8_t>(rows);
    config.row_bytes[tile] = rows > 0 ? kLine : 0;
  };
  for (int tile : {0, 1, 4}) set(tile, first_rows);
  for (int tile : {2, 3, 5}) set(tile, second_rows);
  for (int tile : {6, 7}) set(tile, kTileRows);
  return config;
}

// Calls sweep<row tiles>(first row, end, rows of a step) for all rows, with tiles configured: some
// rows with all panels, so that what is read and written of them stays in L2, then others.
template <class Sweep>
void for_row_groups(std::int64_t rows, Sweep sweep) {
  constexpr std::int64_t kMostRows = 192;
  const std::int64_t full = rows / kGroupRows * kGroupRows;
  const std::int64_t rest = rows - full;
  if (full > 0) {
    load_config(config_for(kTileRows, kTileRows));
    for (std::int64_t r = 0; r < full; r += kMostRows) {
      sweep.template operator()<2>(r, std::min(r + kMostRows, full), kGroupRows);
    }
  }
  if (rest > kTileRows) {
    load_config(config_for(kTileRows, rest - kTileRows));
    sweep.template operator()<2>(full, rows, rest);
  } else if (rest > 0) {
    load_config(config_for(rest, 0));
    sweep.template operator()<1>(full, rows, rest);
  }
  release();
}

// The x of a step.
struct StepRows {
  const std::byte* first;
  std::int64_t row;    // bytes from row to row,
  std::int64_t tile;   // from 16 rows to the next,
  std::int64_t depth;  // and from a tile's inputs to the next
};
// x with elements of so many bytes.
struct Rows {
  const std::byte* x;
  std::int64_t element, stride, block;  // block: as GemmArgs::x_block

  // From a row and a block of inputs on.
  StepRows at(std::int64_t row, std::int64_t of_block) const {
    if (block > 0) {
      return {x + of_block * block + TileOrder::row(row, element), TileOrder::kPiece,
              kTileRows * TileOrder::kInputs * element, kTileBytes};
    }
    const std::int64_t bytes = stride * element;
    return {x + row * bytes + of_block * TileOrder::kInputs * element, bytes, kTileRows * bytes,
            TileOrder::kPiece};
  }
};

// The next block of panels, on its way to L2 while this one multiplies: a tenth of the time where
// panels come from L3.
class Ahead {
 public:
  // `panels` pieces of `bytes`, `stride` apart; none where `first` is null. In so many steps.
  Ahead(const std::byte* first, std::int64_t stride, std::int64_t panels, std::int64_t bytes,
        std::int64_t steps)
      : first_(first),
        stride_(stride),
        lines_of_panel_((bytes + kLine - 1) / kLine),
        lines_(first != nullptr ? panels * lines_of_panel_ : 0),
        lines_of_step_((lines_ + steps - 1) / steps) {}
  void step() {
    for (std::int64_t end = std::min(next_ + lines_of_step_, lines_); next_ < end; ++next_) {
      prefetch_l2(first_ + next_ / lines_of_panel_ * stride_ + next_ % lines_of_panel_ * kLine);
    }
  }

 private:
  const std::byte* first_;
  std::int64_t stride_, lines_of_panel_, lines_, lines_of_step_;
  std::int64_t next_ = 0;
};

// accumulators (+)= x · panels over so many tiles of depth.
template <int RowTiles, int Panels, class Multiply>
void multiply_tiles(const StepRows& x, const std::byte* panel, std::int64_t panel_stride,
                    std::int64_t depth_tiles, Multiply multiply, Ahead& ahead) {
  for (std::int64_t k = 0; k < depth_tiles; ++k) {
    tile_load<4>(x.first + k * x.depth, x.row);
    tile_load<6>(panel + k * kTileBytes, kLine);
    multiply.template operator()<0, 4, 6>();
    if constexpr (Panels == 2) {
      tile_load<7>(panel + panel_stride + k * kTileBytes, kLine);
      multiply.template operator()<1, 4, 7>();
    }
    if constexpr (RowTiles == 2) {
      tile_load<5>(x.first + x.tile + k * x.depth, x.row);
      multiply.template operator()<2, 5, 6>();
    }
    if constexpr (RowTiles == 2 && Panels == 2) multiply.template operator()<3, 5, 7>();
    ahead.step();
  }
}

// f<tile, row tile, panel>() for the accumulators of a step.
template <int RowTiles, int Panels, class F>
void for_accumulators(F f) {
  f.template operator()<0, 0, 0>();
  if constexpr (Panels == 2) f.template operator()<1, 0, 1>();
  if constexpr (RowTiles == 2) f.template operator()<2, 1, 0>();
  if constexpr (RowTiles == 2 && Panels == 2) f.template operator()<3, 1, 1>();
}

}  // namespace
}  // namespace twell::amx
