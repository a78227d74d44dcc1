#include "ops/scratch.h"

namespace twell {

TwellView scratch_activation(Context& context, const FfnShape& shape, std::int64_t rows,
                             std::int32_t tile) {
  TwellView view;
  view.tiles = (shape.neurons + tile - 1) / tile;
  view.tile = tile;
  // A row's list starts 16 slots past a multiple of the tile, so that the starts of all rows do not
  // fall into the same cache sets.
  view.stride = tile + 16;
  view.slot_bytes = slot_bytes(shape.dtype);
  const auto cells = static_cast<std::size_t>(rows * view.tiles);
  view.counts =
      static_cast<std::int32_t*>(context.scratch(0, kCounts, cells * sizeof(std::int32_t)));
  view.slots = static_cast<std::byte*>(
      context.scratch(0, kSlots, cells * static_cast<std::size_t>(view.stride) * view.slot_bytes));
  return view;
}

}  // namespace twell
