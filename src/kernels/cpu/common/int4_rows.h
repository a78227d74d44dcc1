// Rows of int4 (twell/int4.h), wherever they lie: dot products with one token, and panels.
#pragma once

#include "kernels/cpu/common/row_panels.h"
#include "kernels/cpu/common/rows_ahead.h"
#include "twell/int4.h"

namespace twell {
namespace {

constexpr std::int64_t kHalfGroup = kInt4Group / 2;  // inputs in either half of its bytes

// f(first input, number of each lane) for the inputs of a block, without the row's scale.
template <class Isa, class F>
[[gnu::always_inline]] inline void for_each_number(const std::uint8_t* block, F f) {
  const auto scale = Isa::broadcast(int4_scale(block[0]));
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < kHalfGroup; i += Isa::kLanes) {
    const auto codes = Isa::load_halves(block + 1 + i);
    f(i, Isa::mul(codes.low, scale));
    f(kHalfGroup + i, Isa::mul(codes.high, scale));
  }
}

// As sampled_dots, x of T.
template <class Isa, class T>
void sampled_int4_dots(const void* x_row, const WeightView& weight, const std::int32_t* neurons,
                       std::int64_t count, float* dots) {
  constexpr std::int64_t kRows = 2;
  const T* x = static_cast<const T*>(x_row);
  const std::int64_t groups = weight.cols / kInt4Group;
  const auto row = [&](std::int64_t i) {
    return reinterpret_cast<const std::uint8_t*>(weight.row_bytes(neurons[std::min(i, count - 1)]));
  };
  with_rows_ahead<Isa>(groups * kInt4GroupBytes, [&]<class Ahead>() {
    for (std::int64_t i = 0; i < count; i += kRows) {
      const std::uint8_t* w[kRows];
      const std::uint8_t* next[kRows];
      take_rows<Ahead>(i, row, w, next);
      typename Isa::V sums[kRows][2];
      for (auto& sum : sums) sum[0] = sum[1] = Isa::zero();
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t at = g * kInt4GroupBytes;
        for (std::int64_t n = 0; n < kRows; ++n) {
          // A line is not quite four blocks.
          if (g % 3 == 0) Ahead::fetch(next[n] + at);
          for_each_number<Isa>(w[n] + at, [&](std::int64_t k, typename Isa::V number) {
            auto& sum = sums[n][k / kHalfGroup];
            sum = Isa::fma(number, Isa::load(x + g * kInt4Group + k), sum);
          });
        }
      }
      for (std::int64_t n = 0; n < std::min(kRows, count - i); ++n) {
        dots[i + n] = Isa::sum(Isa::add(sums[n][0], sums[n][1])) * weight.row_scale(neurons[i + n]);
      }
    }
  });
}

// As pack_neurons, to T, without the scales of the rows.
template <class Isa, class T>
void pack_int4_neurons(const WeightView& weight, const std::int32_t* neurons, void* panel) {
  // Numbers of a few blocks, which lie as those of a weight of T.
  constexpr std::int64_t kInputs = 8 * kInt4Group;
  alignas(64) T numbers[kPanel][kInputs];
  std::int32_t in_order[kPanel];
  std::iota(in_order, in_order + kPanel, 0);
  T* out = static_cast<T*>(panel);
  for (std::int64_t first = 0; first < weight.cols; first += kInputs) {
    const std::int64_t inputs = std::min(kInputs, weight.cols - first);
    for (std::int64_t n = 0; n < kPanel; ++n) {
      const auto* block = reinterpret_cast<const std::uint8_t*>(weight.row_bytes(neurons[n]) +
                                                                bytes_of(WeightType::int4, first));
      for (std::int64_t at = 0; at < inputs; at += kInt4Group, block += kInt4GroupBytes) {
        for_each_number<Isa>(block, [&](std::int64_t k, typename Isa::V number) {
          Isa::store(numbers[n] + at + k, number);
        });
      }
    }
    const ConstMatrixView rows(numbers, dtype_of<T>::value, kPanel, inputs, kInputs);
    pack_neurons<Isa, T>(rows, in_order, out);
    out += kPanel * inputs;
  }
}

}  // namespace
}  // namespace twell
