// Codes as numbers of the type of x, in panels.
#pragma once

#include <cstring>
#include <utility>

#include "kernels/kernel.h"

namespace twell {
namespace {

constexpr std::int64_t kCodeStep = 4;  // inputs of a word of int8

// Where the code of an input stands in a word of codes. Of int4 the first four are the low halves
// of its bytes.
template <int Bits>
constexpr int bit_of(int input) {
  return Bits == 8 ? 8 * input : 8 * (input % 4) + 4 * (input / 4);
}

// Words of codes of Bits bits, one of each of kLanes neurons, as the same inputs of a panel of X,
// whose words hold one input (f32) or two (bf16). `scale`: of a number.
template <class Isa, class X, int Bits, class Scale>
void widen_words(typename Isa::I words, X* panel, Scale scale) {
  constexpr int kPerWord = 4 / sizeof(X);
  const auto number = [&]<int Input>() {
    return scale(Isa::template code<Bits, bit_of<Bits>(Input)>(words));
  };
  const auto of_word = [&]<int Word>() {
    if constexpr (kPerWord == 1) {
      return number.template operator()<Word>();
    } else {
      return Isa::pairs(number.template operator()<2 * Word>(),
                        number.template operator()<2 * Word + 1>());
    }
  };
  [&]<int... Word>(std::integer_sequence<int, Word...>) {
    const auto store = [&](int word, const auto& of_neurons) {
      std::memcpy(static_cast<void*>(panel + word * kPanel * kPerWord), &of_neurons,
                  sizeof of_neurons);
    };
    (store(Word, of_word.template operator()<Word>()), ...);
  }
  (std::make_integer_sequence<int, 32 / Bits / kPerWord>{});
}

// A step of int8, 16 neurons × 4 inputs.
template <class Isa, class X>
void widen_step(const std::int8_t* step, X* panel) {
  for (std::int64_t n = 0; n < kPanel; n += Isa::kLanes) {
    widen_words<Isa, X, 8>(Isa::load_words(step + n * kCodeStep),
                           panel + n * static_cast<std::int64_t>(4 / sizeof(X)),
                           [](typename Isa::V code) { return code; });
  }
}

}  // namespace
}  // namespace twell
