// f32 pre-activations of a column block, still in cache, to the slots of a packed activation.
#pragma once

#include "kernels/kernel.h"

namespace twell {
namespace {

// What a column block adds to rows of the output. The count is the caller's, in a register.
template <class T>
class BlockSlots {
 public:
  explicit BlockSlots(const PackArgs& to)
      : to_(to),
        tile_(to.first / to.out.tile),
        offset_(static_cast<std::uint32_t>(to.first - tile_ * to.out.tile)) {}

  // Pre-activation z, which the activation keeps, at a column of the block; returns the new count.
  std::int32_t add(std::int32_t count, std::uint32_t column, float z) {
    const T value = static_cast<T>(activated(to_.activation.kind, z));
    if (is_zero(value)) return count;
    slots_[count] = make_slot(offset_ + column, value);
    return count + 1;
  }
  void append_to(std::int64_t row, std::int32_t count) const {
    if (count > 0) to_.out.append(to_.out_row + row, tile_, slots_, count);
  }

 private:
  const PackArgs& to_;
  std::int64_t tile_;
  std::uint32_t offset_;
  typename slot_of<T>::type slots_[kColumnBlock];
};

// 16 pre-activations from column j of a row of c on, with their bias.
template <class Isa>
void add_bias(const PackArgs& args, const float* c, std::int64_t j, float* sums) {
  if (args.width - j < kPanel) {
    for (std::int64_t i = 0; i < kPanel; ++i) {
      sums[i] = j + i < args.width ? c[j + i] + args.bias[j + i] : 0.0F;
    }
    return;
  }
  for (std::int64_t i = 0; i < kPanel; i += Isa::kLanes) {
    Isa::store(sums + i, Isa::add(Isa::load(c + j + i), Isa::load(args.bias + j + i)));
  }
}

// At 99 % zeros nine of ten groups of 16 hold nothing, so the test of a whole group is the fast
// path.
template <class Isa, class T, bool Biased>
void pack_rows(const PackArgs& args) {
  const float threshold = args.activation.kept_above();
  BlockSlots<T> slots(args);
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const float* row = args.c + r * kSumStride;
    std::int32_t count = 0;
    for (std::int64_t j = 0; j < args.width; j += kPanel) {
      float sums[kPanel];
      if constexpr (Biased) add_bias<Isa>(args, row, j, sums);
      const float* v = Biased ? sums : row + j;
      std::uint32_t mask = Isa::kept16(v, threshold);
      if (args.width - j < kPanel) {
        mask &= (1U << (args.width - j)) - 1U;  // padding neurons may be NaN
      }
      for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<std::uint32_t>(__builtin_ctz(mask));
        count = slots.add(count, static_cast<std::uint32_t>(j) + i, v[i]);
      }
    }
    slots.append_to(r, count);
  }
}

template <class Isa, class T>
void pack(const PackArgs& args) {
  if (args.bias != nullptr) {
    pack_rows<Isa, T, true>(args);
  } else {
    pack_rows<Isa, T, false>(args);
  }
}

}  // namespace
}  // namespace twell
