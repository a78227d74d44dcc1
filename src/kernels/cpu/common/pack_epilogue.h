// The packing epilogue: f32 accumulators of a column block, still in cache, to TwELL slots.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace twell {
namespace {

template <class T>
T activate(float v, Activation kind) {
  return static_cast<T>(kind == Activation::relu_squared ? v * v : v);
}

// What a column block adds to rows of the output; its columns [first, ...) of H lie in one tile.
// The count is the caller's, in a register.
template <class T>
class BlockSlots {
 public:
  BlockSlots(const GateOutput& to, std::int64_t first)
      : to_(to),
        tile_(first / to.out.tile),
        offset_(static_cast<std::uint32_t>(first - tile_ * to.out.tile)) {}

  // Pre-activation z, which the activation keeps, at a column of the block; returns the new count.
  std::int32_t add(std::int32_t count, std::uint32_t column, float z) {
    const T value = activate<T>(z, to_.activation.kind);
    if (is_zero(value)) return count;
    slots_[count] = make_slot(offset_ + column, value);
    return count + 1;
  }
  void append_to(std::int64_t row, std::int32_t count) const {
    if (count > 0) to_.out.append(to_.out_row + row, tile_, slots_, count);
  }

 private:
  const GateOutput& to_;
  std::int64_t tile_;
  std::uint32_t offset_;
  typename slot_of<T>::type slots_[kColumnBlock];
};

// An activation keeps what is not at most this, NaN too.
inline float threshold_of(const ActivationSpec& activation) {
  return activation.kind == Activation::fat_relu ? activation.threshold : 0.0F;
}

// Appends the non-zeros of act(c) for `rows` rows and columns [first, first + width) of H; width is
// at most kColumnBlock and the columns lie in one tile. At 99 % zeros nine of ten groups of 16 hold
// nothing, so the test of a whole group is the fast path.
template <class Isa, class T>
void pack_epilogue(const float* c, std::int64_t rows, std::int64_t first, std::int64_t width,
                   const GateOutput& args) {
  const float threshold = threshold_of(args.activation);
  BlockSlots<T> slots(args, first);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = c + r * kColumnBlock;
    std::int32_t count = 0;
    for (std::int64_t j = 0; j < width; j += kPanel) {
      std::uint32_t mask = Isa::kept16(row + j, threshold);
      if (width - j < kPanel) mask &= (1U << (width - j)) - 1U;  // padding neurons may be NaN
      for (; mask != 0; mask &= mask - 1) {
        const auto i =
            static_cast<std::uint32_t>(j) + static_cast<std::uint32_t>(__builtin_ctz(mask));
        count = slots.add(count, i, row[i]);
      }
    }
    slots.append_to(r, count);
  }
}

// Splits panels [begin, end) at column blocks and at borders of `tile` columns: f(first panel,
// panels, columns of H).
template <class F>
void for_each_column_block(std::int64_t begin, std::int64_t end, std::int64_t hidden,
                           std::int64_t tile, F f) {
  const std::int64_t tile_panels = tile / kPanel;
  for (std::int64_t p = begin; p < end;) {
    const std::int64_t tile_end = (p / tile_panels + 1) * tile_panels;
    const std::int64_t next = std::min({end, tile_end, p + kColumnBlock / kPanel});
    f(p, next - p, std::min(next * kPanel, hidden) - p * kPanel);
    p = next;
  }
}

// gemm fills the accumulators of a column block, then they are packed.
template <class Isa, class T, class GemmFunction>
void gemm_then_pack(const GemmReluTwellArgs& args, GemmFunction gemm) {
  for_each_column_block(args.panel_begin, args.panel_end, args.weight.rows, args.out.tile,
                        [&](std::int64_t panel, std::int64_t panels, std::int64_t width) {
                          gemm(GemmArgs{args.x, args.x_stride, args.rows, args.weight, panel,
                                        panels, args.accumulators, false});
                          pack_epilogue<Isa, T>(args.accumulators, args.rows, panel * kPanel, width,
                                                args);
                        });
}

}  // namespace
}  // namespace twell
