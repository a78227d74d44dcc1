// e^x of a row of scores: the middle of a softmax.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/kernel.h"

namespace twell {
namespace {

// e^x for x <= 0 within four units of 2^-24; below -86 it is e^-86, 4e-38; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, where Taylor's polynomial of degree 7 errs by 5e-9.
template <class Isa>
typename Isa::V exponential(typename Isa::V x) {
  using V = typename Isa::V;
  const auto constant = [](float f) { return Isa::broadcast(f); };
  x = Isa::max_of(constant(-86.0F), x);
  // Adding 1.5 * 2^23 leaves n, the nearest integer, in the low bits. n times the first constant is
  // exact: it has 9 bits, n has 7.
  const V shift = constant(0x1.8p23F);
  const V shifted = Isa::fma(x, constant(0x1.715476p0F), shift);
  const V n = Isa::add(shifted, constant(-0x1.8p23F));
  V r = Isa::fma(n, constant(-0x1.63p-1F), x);
  r = Isa::fma(n, constant(0x1.bd0106p-13F), r);  // their sum is -ln 2
  V sum = constant(1.0F / 5040);
  for (const float factorial : {720.0F, 120.0F, 24.0F, 6.0F, 2.0F, 1.0F, 1.0F}) {
    sum = Isa::fma(sum, r, constant(1.0F / factorial));
  }
  return Isa::times_power(sum, shifted);
}

template <class Isa>
ExponentialSum exponentials(float* values, std::int64_t count) {
  constexpr std::int64_t kLanes = Isa::kLanes;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int64_t whole = count / kLanes * kLanes;
  alignas(64) float tail[kLanes];  // -inf behind the last
  std::fill(std::copy(values + whole, values + count, tail), tail + kLanes, -kInfinity);
  auto most = Isa::max_of(Isa::load(tail), Isa::broadcast(-kInfinity));
  for (std::int64_t i = 0; i < whole; i += kLanes) most = Isa::max_of(Isa::load(values + i), most);
  float lanes[kLanes];
  Isa::store(lanes, most);
  const float largest = *std::max_element(lanes, lanes + kLanes);

  // Where all are -inf, they stay so.
  const auto less = Isa::broadcast(-std::max(largest, std::numeric_limits<float>::lowest()));
  auto sums = Isa::zero();
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    const auto e = exponential<Isa>(Isa::add(Isa::load(values + i), less));
    Isa::store(values + i, e);
    sums = Isa::add(sums, e);
  }
  Isa::store(tail, exponential<Isa>(Isa::add(Isa::load(tail), less)));
  float sum = Isa::sum(sums);
  for (std::int64_t i = whole; i < count; ++i) sum += values[i] = tail[i - whole];
  return {largest, sum};
}

}  // namespace
}  // namespace twell
