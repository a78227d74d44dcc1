// The places of one row told apart, and those of hot neurons as dense rows: such a neuron is
// multiplied for all rows anyway, and loops over dense rows have no branches.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "ops/hot_set.h"

namespace twell {

// Σ |values|, in eight sums side by side.
inline double absolute_sum(const float* values, std::int64_t count) {
  constexpr std::int64_t kSums = 8;
  float sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t s = 0; s < kSums; ++s) sums[s] += std::fabs(values[i + s]);
  }
  for (; i < count; ++i) sums[0] += std::fabs(values[i]);
  double all = 0.0;
  for (const float sum : sums) all += sum;
  return all;
}

// value where v is not 0 (a NaN is not), else 0. A mask, since a branch would be mispredicted where
// half of the places fire.
inline float where_nonzero(float v, float value) {
  const std::uint32_t mask =
      0U - static_cast<std::uint32_t>(std::bit_cast<std::uint32_t>(v) << 1U != 0);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & mask);
}

// f(kind), one of a list, as a constant.
template <const auto& kList, class F>
void with_kind(Activation kind, F f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((kind == kList[I] ? f(std::integral_constant<Activation, kList[I]>()) : void()), ...);
  }
  (std::make_index_sequence<std::size(kList)>());
}
// f(gate, up): the activations as kinds that the compiler knows, so that f's loops have no
// branches.
template <class F>
void with_kinds(const FfnForm& form, F f) {
  with_kind<kActivations>(form.gate.kind, [&](auto gate) {
    with_kind<kUpActivations>(form.up, [&](auto up) { f(gate, up); });
  });
}

// A thread's, for one row after the other.
class RowPlaces {
 public:
  static constexpr int kDense = 4;

  static std::size_t bytes(std::int64_t neurons) {
    return static_cast<std::size_t>(neurons) * (3 * sizeof(std::int32_t) + kDense * sizeof(float));
  }
  // In memory of bytes(neurons).
  RowPlaces(const HotSet& hot, std::int64_t neurons, void* memory)
      : hot_(hot),
        hot_at_(static_cast<std::int32_t*>(memory)),
        hot_place_(hot_at_ + neurons),
        cold_at_(hot_place_ + neurons),
        dense_(reinterpret_cast<float*>(cold_at_ + neurons)),
        neurons_(neurons) {}

  // `neurons` of a row; those that are not hot to `cold`, which has room for all.
  void split(const std::int32_t* neurons, std::int64_t count, std::int32_t* cold) {
    std::int64_t hot = 0, others = 0;
    full_ = hot_.size() > 0 && count == hot_.size() &&
            std::equal(neurons, neurons + count, hot_.list());
    if (full_) {
      hot = count;
    } else if (hot_.size() == 0) {
      std::copy_n(neurons, count, cold);
      for (; others < count; ++others) cold_at_[others] = static_cast<std::int32_t>(others);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t place = hot_.place(neurons[i]);
        hot_at_[hot] = cold_at_[others] = static_cast<std::int32_t>(i);
        hot_place_[hot] = place;
        cold[others] = neurons[i];
        hot += place >= 0;
        others += place < 0;
      }
    }
    hot_count_ = hot;
    cold_count_ = others;
  }
  std::int64_t hot_count() const { return hot_count_; }
  std::int64_t cold_count() const { return cold_count_; }
  // Where in the row's list the k-th of the hot ones is, and which hot neuron it is.
  std::int64_t hot_at(std::int64_t k) const { return full_ ? k : hot_at_[k]; }
  std::int64_t hot_place(std::int64_t k) const { return full_ ? k : hot_place_[k]; }
  // Where in the row's list the k-th of them is.
  std::int32_t cold_at(std::int64_t k) const { return cold_at_[k]; }

  // Dense rows of the hot neurons, for the caller to use: k < kDense.
  float* dense(int k) const { return dense_ + k * neurons_; }
  // dense = the row's values where it has places, 0 elsewhere.
  template <class T>
  void spread(const T* list, float* dense) const {
    if (full_) {
      for (std::int64_t k = 0; k < hot_count_; ++k) dense[k] = static_cast<float>(list[k]);
      return;
    }
    std::fill_n(dense, hot_.size(), 0.0F);
    for (std::int64_t k = 0; k < hot_count_; ++k) {
      dense[hot_place_[k]] = static_cast<float>(list[hot_at_[k]]);
    }
  }
  // The other way round.
  template <class T>
  void collect(const T* dense, T* list) const {
    if (full_) {
      std::copy_n(dense, hot_count_, list);
      return;
    }
    for (std::int64_t k = 0; k < hot_count_; ++k) list[hot_at_[k]] = dense[hot_place_[k]];
  }

 private:
  const HotSet& hot_;
  std::int32_t *hot_at_, *hot_place_, *cold_at_;
  float* dense_;
  std::int64_t neurons_;
  std::int64_t hot_count_ = 0, cold_count_ = 0;
  bool full_ = false;  // its places are the hot neurons, all of them
};

}  // namespace twell
