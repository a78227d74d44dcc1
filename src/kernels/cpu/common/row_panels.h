// Rows of a weight, wherever they lie, to the panels of a GEMM, and what goes with it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/common/widen.h"

namespace twell {
namespace {

constexpr std::int64_t kWord = 4;  // bytes: two bf16 inputs or one f32

// A panel holds 32-bit words, 16 neurons side by side: the transpose of the rows' words.
template <class Isa, class T>
void pack_neurons(const WeightView& weight, const std::int32_t* neurons, void* panel) {
  constexpr auto kPerWord = static_cast<std::int64_t>(kWord / sizeof(T));
  const std::int64_t cols = weight.cols;
  const void* rows[kPanel];
  for (std::int64_t n = 0; n < kPanel; ++n) rows[n] = weight.template row<T>(neurons[n]);
  auto* out = static_cast<std::uint32_t*>(panel);
  const std::int64_t words = cols / kPerWord;
  std::int64_t w = 0;
  if constexpr (requires { Isa::transpose_words(rows, w, out); }) {
    for (; w + kPanel <= words; w += kPanel) Isa::transpose_words(rows, w, out + w * kPanel);
  }
  for (; w < words; ++w) {
    for (std::int64_t n = 0; n < kPanel; ++n) {
      std::memcpy(out + w * kPanel + n, static_cast<const std::byte*>(rows[n]) + w * kWord, kWord);
    }
  }
  const std::int64_t depth = packed_depth(weight_type(dtype_of<T>::value), cols);
  std::fill_n(out + w * kPanel, (depth / kPerWord - w) * kPanel, 0U);
  if (cols % kPerWord == 0) return;
  for (std::int64_t n = 0; n < kPanel; ++n) {  // an odd bf16 input
    const auto* last = static_cast<const std::byte*>(rows[n]) + w * kWord;
    std::memcpy(out + w * kPanel + n, last, sizeof(T));
  }
}

// From codes, without their scales.
template <class Isa, class T>
void pack_neuron_codes(const WeightView& weight, const std::int32_t* neurons, void* panel) {
  const std::int64_t cols = weight.cols;
  const void* rows[kPanel];
  for (std::int64_t n = 0; n < kPanel; ++n) rows[n] = weight.template row<std::int8_t>(neurons[n]);
  const std::int64_t depth = packed_depth(weight_type(dtype_of<T>::value), cols);
  T* out = static_cast<T*>(panel);
  const auto widened = [](const std::uint32_t* words, T* to) {
    widen_step<Isa>(reinterpret_cast<const std::int8_t*>(words), to);
  };
  std::int64_t k = 0;
  if constexpr (requires(std::uint32_t * words) { Isa::transpose_words(rows, 0, words); }) {
    constexpr std::int64_t kInputs = kPanel * kCodeStep;
    for (; k + kInputs <= cols; k += kInputs) {
      std::uint32_t words[kPanel * kPanel];
      Isa::transpose_words(rows, k / kCodeStep, words);
      for (std::int64_t w = 0; w < kPanel; ++w) {
        widened(words + w * kPanel, out + (k + w * kCodeStep) * kPanel);
      }
    }
  }
  for (; k < depth; k += kCodeStep) {
    std::uint32_t words[kPanel] = {};
    const std::int64_t there = std::clamp<std::int64_t>(cols - k, 0, kCodeStep);
    for (std::int64_t n = 0; there > 0 && n < kPanel; ++n) {
      std::memcpy(words + n, static_cast<const std::int8_t*>(rows[n]) + k,
                  static_cast<std::size_t>(there));
    }
    T step[kPanel * kCodeStep];  // f32 has no room for inputs that are none
    widened(words, step);
    std::copy_n(step, std::min(depth - k, kCodeStep) * kPanel, out + k * kPanel);
  }
}

// 16 neurons of one step: a[j] and, with bf16, b[j] beside it. Written for the vectoriser.
inline void interleave(const bf16* a, const bf16* b, bf16* out) {
  std::uint16_t low[kPanel];
  std::uint16_t high[kPanel];
  std::uint32_t words[kPanel];
  std::memcpy(low, a, sizeof low);
  std::memcpy(high, b, sizeof high);
  for (std::int64_t j = 0; j < kPanel; ++j) {
    words[j] = low[j] | static_cast<std::uint32_t>(high[j]) << 16U;
  }
  std::memcpy(out, words, sizeof words);
}
inline void interleave(const float* a, const float*, float* out) {
  std::memcpy(out, a, kPanel * sizeof(float));
}
inline void interleave(const std::int8_t* a, const std::int8_t* b, bf16* out) {
  std::uint32_t words[kPanel];
  for (std::int64_t j = 0; j < kPanel; ++j) {  // a code is exact in the upper half of a float
    words[j] = std::bit_cast<std::uint32_t>(static_cast<float>(a[j])) >> 16U |
               std::bit_cast<std::uint32_t>(static_cast<float>(b[j]));
  }
  std::memcpy(out, words, sizeof words);
}
inline void interleave(const std::int8_t* a, const std::int8_t*, float* out) {
  for (std::int64_t j = 0; j < kPanel; ++j) out[j] = static_cast<float>(a[j]);
}

// Panels of T from rows of W; codes without their scales.
template <class Isa, class T, class W>
void pack_inputs(const WeightView& weight, const std::int32_t* rows, std::int64_t count,
                 std::int64_t first, std::int64_t columns, void* panels) {
  constexpr auto kPerWord = static_cast<std::int64_t>(kWord / sizeof(T));
  constexpr std::int64_t kLine = 64 / sizeof(W);
  constexpr std::int64_t kAhead = 16;  // rows
  const std::int64_t depth = packed_depth(weight_type(dtype_of<T>::value), count);
  // Not read again after every store.
  const W* const from = weight.template row<W>(0) + first;
  const std::int64_t stride = weight.row_stride;
  T* out = static_cast<T*>(panels);
  // Past the last column and past the last row: zeros.
  W edge[2][kPanel] = {};
  const std::int64_t whole = columns / kPanel;
  for (std::int64_t i = 0; i < depth; i += kPerWord) {
    const auto input = [=](std::int64_t n) {
      return n < count ? from + (rows != nullptr ? rows[n] : n) * stride : nullptr;
    };
    // 512 bytes of each row, somewhere in L3: not to be waited for one by one.
    if (const W* ahead = input(i + kAhead)) {
      for (std::int64_t j = 0; j < columns; j += kLine) Isa::prefetch(ahead + j);
    }
    const W* a = input(i);
    const W* b = input(i + kPerWord - 1);
    for (std::int64_t p = 0; p < packed_panels(columns); ++p) {
      T* step = out + p * kPanel * depth + i * kPanel;
      if (p < whole && b != nullptr) {
        interleave(a + p * kPanel, b + p * kPanel, step);
        continue;
      }
      const std::int64_t width = std::min(kPanel, columns - p * kPanel);
      std::fill_n(edge[0], 2 * kPanel, W{});
      if (a != nullptr) std::copy_n(a + p * kPanel, width, edge[0]);
      if (b != nullptr) std::copy_n(b + p * kPanel, width, edge[1]);
      interleave(edge[0], edge[1], step);
    }
  }
}

template <class Isa, class X>
void multiply_nonzeros(const float* u, std::int64_t count, void* hidden) {
  X* h = static_cast<X*>(hidden);
  std::int64_t i = 0;
  for (; i + Isa::kLanes <= count; i += Isa::kLanes) {
    const auto g = Isa::load(h + i);
    // Not g · u alone: where g is 0, an infinite u must not make a NaN.
    Isa::store(h + i, Isa::where_nonzero(g, Isa::mul(g, Isa::load(u + i))));
  }
  for (; i < count; ++i) {
    const auto g = static_cast<float>(h[i]);
    h[i] = static_cast<X>(g == 0.0F ? 0.0F : g * u[i]);
  }
}

// Infinities and NaNs have all exponent bits set. In integers, which the vectoriser takes.
template <class T>
bool all_finite(const void* row, std::int64_t cols) {
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  constexpr auto kExponent = static_cast<Bits>(sizeof(T) == 2 ? 0x7f80U : 0x7f800000U);
  const auto* w = static_cast<const Bits*>(row);
  Bits bad = 0;
  for (std::int64_t k = 0; k < cols; ++k) {
    bad |= static_cast<Bits>((w[k] & kExponent) == kExponent);
  }
  return bad == 0;
}
template <class T>
bool row_finite(const WeightView& weight, std::int64_t row) {
  return all_finite<T>(weight.template row<T>(row), weight.cols);
}
inline bool codes_finite(const WeightView& /*weight*/, std::int64_t /*row*/) { return true; }

}  // namespace
}  // namespace twell
