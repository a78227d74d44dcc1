// A packed activation as kernels write and read it, in memory of somebody else. A tile has room for
// all of its columns, so that no kernel knows of overflow.
#pragma once

#include <algorithm>
#include <cstring>

#include "format/slots.h"

namespace twell {

struct TwellView {
  std::int64_t tiles = 0;
  std::int32_t tile = 0;           // columns of a tile
  std::int32_t stride = 0;         // slots from tile to tile, at least `tile`
  std::size_t slot_bytes = 0;      // of TwellSlot16 or TwellSlot32
  std::int32_t* counts = nullptr;  // [rows × tiles]
  std::byte* slots = nullptr;      // [rows × tiles × stride]

  std::int32_t& count(std::int64_t row, std::int64_t t) const { return counts[row * tiles + t]; }
  std::byte* slots_of(std::int64_t row, std::int64_t t) const {
    return slots + static_cast<std::size_t>((row * tiles + t) * stride) * slot_bytes;
  }

  std::int32_t row_count(std::int64_t row) const {
    std::int32_t sum = 0;
    for (std::int64_t t = 0; t < tiles; ++t) sum += count(row, t);
    return sum;
  }

  // f(neuron, value) for the slots of (row, t), ascending.
  template <class F>
  void for_each_slot(std::int64_t row, std::int64_t t, F f) const {
    if (slot_bytes == sizeof(TwellSlot16)) {
      for_each_typed<TwellSlot16>(row, t, f);
    } else {
      for_each_typed<TwellSlot32>(row, t, f);
    }
  }

  // The slots of a row as two lists; returns how many there are.
  std::int64_t list_row(std::int64_t row, std::int32_t* neurons, float* values) const {
    std::int64_t n = 0;
    for (std::int64_t t = 0; t < tiles; ++t) {
      for_each_slot(row, t, [&](std::int32_t neuron, float value) {
        neurons[n] = neuron;
        values[n++] = value;
      });
    }
    return n;
  }

  // Removes the slots of (row, t) for which f(neuron, value) is true; the others keep their order.
  template <class F>
  void remove_slots_if(std::int64_t row, std::int64_t t, F f) const {
    if (slot_bytes == sizeof(TwellSlot16)) {
      remove_if_typed<TwellSlot16>(row, t, f);
    } else {
      remove_if_typed<TwellSlot32>(row, t, f);
    }
  }

  // The slots of (row, t) as two lists, for T of the slots. Returns how many there are.
  template <class T>
  std::int32_t unpack(std::int64_t row, std::int64_t t, std::int32_t* neurons, T* values) const {
    const auto* here = reinterpret_cast<const typename slot_of<T>::type*>(slots_of(row, t));
    const auto first = static_cast<std::int32_t>(t * tile);
    const std::int32_t n = count(row, t);
    for (std::int32_t i = 0; i < n; ++i) {
      neurons[i] = first + static_cast<std::int32_t>(here[i].column);
      values[i] = stored_value(here[i]);
    }
    return n;
  }

  // Appends `n` slots to (row, t), which has room for them.
  void append(std::int64_t row, std::int64_t t, const void* source, std::int32_t n) const {
    std::int32_t& have = count(row, t);
    std::memcpy(slots_of(row, t) + static_cast<std::size_t>(have) * slot_bytes, source,
                static_cast<std::size_t>(n) * slot_bytes);
    have += n;
  }

 private:
  template <class Slot, class F>
  void for_each_typed(std::int64_t row, std::int64_t t, F f) const {
    const auto* here = reinterpret_cast<const Slot*>(slots_of(row, t));
    const auto first = static_cast<std::int32_t>(t * tile);
    const std::int32_t n = count(row, t);
    for (std::int32_t i = 0; i < n; ++i) {
      f(first + static_cast<std::int32_t>(here[i].column), value_of(here[i]));
    }
  }
  template <class Slot, class F>
  void remove_if_typed(std::int64_t row, std::int64_t t, F f) const {
    auto* here = reinterpret_cast<Slot*>(slots_of(row, t));
    const auto first = static_cast<std::int32_t>(t * tile);
    std::int32_t kept = 0;
    for (std::int32_t i = 0; i < count(row, t); ++i) {
      const Slot slot = here[i];
      if (!f(first + static_cast<std::int32_t>(slot.column), value_of(slot))) here[kept++] = slot;
    }
    count(row, t) = kept;
  }
};

}  // namespace twell
