// A borrowed TwELL matrix: what kernels read and write. TwellMatrix owns one; the fused FFN lays
// one over its scratch memory.
#pragma once

#include <algorithm>
#include <cstring>

#include "format/overflow_pool.h"
#include "twell/format.h"

namespace twell {

template <class T>
struct slot_of;
template <>
struct slot_of<bf16> {
  using type = TwellSlot16;
};
template <>
struct slot_of<float> {
  using type = TwellSlot32;
};

// Slots and their values, so that a kernel is written once for every dtype.
inline float value_of(TwellSlot16 slot) { return static_cast<float>(bf16::from_bits(slot.bits)); }
inline float value_of(TwellSlot32 slot) { return slot.value; }
inline TwellSlot16 make_slot(std::uint32_t column, bf16 value) {
  return {static_cast<std::uint16_t>(column), value.bits};
}
inline TwellSlot32 make_slot(std::uint32_t column, float value) { return {column, value}; }
inline bool is_zero(bf16 value) { return (value.bits & 0x7fffU) == 0; }
inline bool is_zero(float value) { return value == 0.0F; }

struct TwellView {
  std::int64_t tiles = 0;
  std::int32_t tile = 0;
  std::int32_t capacity = 0;
  std::size_t slot_bytes = 0;
  std::int32_t* counts = nullptr;    // [rows × tiles]
  std::byte* slots = nullptr;        // [rows × tiles × capacity]
  OverflowPool* overflow = nullptr;  // may be null where capacity == tile

  std::int32_t& count(std::int64_t row, std::int64_t t) const { return counts[row * tiles + t]; }

  std::int64_t row_count(std::int64_t row) const {
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < tiles; ++t) sum += count(row, t);
    return sum;
  }

  // f(neuron) for the slots of (row, t), ascending.
  template <class F>
  void for_each_slot(std::int64_t row, std::int64_t t, F f) const {
    const auto first = static_cast<std::int32_t>(t * tile);
    const std::int32_t n = count(row, t);
    if (slot_bytes == sizeof(TwellSlot16)) {
      const auto* slots16 = reinterpret_cast<const TwellSlot16*>(stored(row, t));
      for (std::int32_t i = 0; i < n; ++i) f(first + slots16[i].column);
    } else {
      const auto* slots32 = reinterpret_cast<const TwellSlot32*>(stored(row, t));
      for (std::int32_t i = 0; i < n; ++i) f(first + static_cast<std::int32_t>(slots32[i].column));
    }
  }

  // Removes the slots of (row, t) for which f(neuron, value) is true; the others keep their order.
  // Inline tiles only (capacity == tile).
  template <class F>
  void remove_slots_if(std::int64_t row, std::int64_t t, F f) const {
    if (slot_bytes == sizeof(TwellSlot16)) {
      remove_if_typed<TwellSlot16>(row, t, f);
    } else {
      remove_if_typed<TwellSlot32>(row, t, f);
    }
  }

  std::byte* inline_slots(std::int64_t row, std::int64_t t) const {
    return slots + static_cast<std::size_t>((row * tiles + t) * capacity) * slot_bytes;
  }

  // The slots of (row, t), wherever they are.
  const std::byte* stored(std::int64_t row, std::int64_t t) const {
    std::byte* here = inline_slots(row, t);
    if (count(row, t) <= capacity) [[likely]]
      return here;
    std::uint32_t record = 0;
    std::memcpy(&record, here, sizeof record);
    return overflow->record(record);
  }

  // Appends `n` slots to (row, t). A tile that outgrows its inline room moves to an overflow
  // record.
  void append(std::int64_t row, std::int64_t t, const void* source, std::int32_t n) const {
    std::int32_t& have = count(row, t);
    std::byte* target = inline_slots(row, t);
    if (have + n > capacity) [[unlikely]]
      target = overflow_record(have, target);
    std::memcpy(target + static_cast<std::size_t>(have) * slot_bytes, source,
                static_cast<std::size_t>(n) * slot_bytes);
    have += n;
  }

 private:
  template <class Slot, class F>
  void remove_if_typed(std::int64_t row, std::int64_t t, F f) const {
    auto* slots_here = reinterpret_cast<Slot*>(inline_slots(row, t));
    const auto first = static_cast<std::int32_t>(t * tile);
    std::int32_t kept = 0;
    for (std::int32_t i = 0; i < count(row, t); ++i) {
      const Slot slot = slots_here[i];
      if (!f(first + static_cast<std::int32_t>(slot.column), value_of(slot))) {
        slots_here[kept++] = slot;
      }
    }
    count(row, t) = kept;
  }

  std::byte* overflow_record(std::int32_t have, std::byte* inline_room) const {
    std::uint32_t record = 0;
    if (have > capacity) {
      std::memcpy(&record, inline_room, sizeof record);
      return overflow->record(record);
    }
    record = overflow->acquire();
    std::byte* target = overflow->record(record);
    std::memcpy(target, inline_room, static_cast<std::size_t>(have) * slot_bytes);
    std::memcpy(inline_room, &record, sizeof record);
    return target;
  }
};

}  // namespace twell
