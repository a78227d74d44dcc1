// Slots and their values, so that code is written once for every dtype.
#pragma once

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

inline bf16 stored_value(TwellSlot16 slot) { return bf16::from_bits(slot.bits); }
inline float stored_value(TwellSlot32 slot) { return slot.value; }
inline float value_of(TwellSlot16 slot) { return static_cast<float>(stored_value(slot)); }
inline float value_of(TwellSlot32 slot) { return slot.value; }
inline TwellSlot16 make_slot(std::uint32_t column, bf16 value) {
  return {static_cast<std::uint16_t>(column), value.bits};
}
inline TwellSlot32 make_slot(std::uint32_t column, float value) { return {column, value}; }
inline bool is_zero(bf16 value) { return (value.bits & 0x7fffU) == 0; }
inline bool is_zero(float value) { return value == 0.0F; }

}  // namespace twell
