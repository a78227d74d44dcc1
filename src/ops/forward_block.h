// What ffn_forward() does with a block of rows, row by row, once the gate is packed.
#pragma once

#include "format/twell_view.h"
#include "ops/chosen_products.h"
#include "ops/row_places.h"

namespace twell {

// One block of rows. T: the layer's dtype.
template <class T>
struct ForwardBlock {
  const Kernels& kernels;
  const FfnWeights& weights;
  Activation kind;
  const TwellView& packed;
  const HotSet& hot;
  SparseX hidden;               // [rows, hot neurons]: h
  float* dots;                  // [rows, hot neurons]: u
  const std::int64_t* offsets;  // of the block's rows
  std::int32_t* neurons;        // of all places, as v and u
  T *v, *u;
  // Places that are not hot, and their h; those of a row from where its places start in the block.
  std::int32_t* cold;
  float* values;
  std::int32_t* cold_count;  // [rows]

  // The row's places, their u and h. Returns Σ |h|.
  double fire(std::int64_t row, const void* x, RowPlaces& places) const {
    std::int64_t end = offsets[row];
    for (std::int64_t t = 0; t < packed.tiles; ++t) {
      end += packed.unpack(row, t, neurons + end, v + end);
    }
    places.split(neurons + offsets[row], end - offsets[row], cold_of(row));
    cold_count[row] = static_cast<std::int32_t>(places.cold_count());
    return (hot.size() > 0 ? fire_hot(row, places) : 0.0) + fire_cold(row, x, places);
  }

  // sum [D] (+)= h · down of the places that are not hot.
  void gather(std::int64_t row, bool add, float* sum) const {
    if (cold_count[row] == 0 && add) return;
    kernels.weighted_rows(weights.down, {cold_of(row), values_of(row), cold_count[row]}, add, sum);
  }

 private:
  std::int32_t* cold_of(std::int64_t row) const { return cold + (offsets[row] - offsets[0]); }
  float* values_of(std::int64_t row) const { return values + (offsets[row] - offsets[0]); }

  double fire_hot(std::int64_t row, const RowPlaces& places) const {
    const std::int64_t count = hot.size();
    const std::int64_t first = offsets[row];
    float* const pre = places.dense(0);
    float* const h = places.dense(1);
    places.spread(v + first, pre);
    const float* const up = weights.up ? dots + row * count : nullptr;
    with_kind(kind, [=](auto kind) {
      if (up == nullptr) {
        for (std::int64_t k = 0; k < count; ++k) h[k] = activated(kind(), pre[k]);
      } else {  // what did not fire stays 0 where u is infinite
        for (std::int64_t k = 0; k < count; ++k) {
          h[k] = where_nonzero(pre[k], activated(kind(), pre[k]) * up[k]);
        }
      }
    });
    hidden.set_row(row, h, count, kernels);
    if (up != nullptr) {
      T* const rounded = reinterpret_cast<T*>(pre);
      kernels.round_row(up, count, rounded);
      places.collect(rounded, u + first);
    }
    return absolute_sum(h, count);
  }

  double fire_cold(std::int64_t row, const void* x, const RowPlaces& places) const {
    const std::int64_t count = places.cold_count();
    float* const h = values_of(row);
    std::fill_n(h, count, 1.0F);
    if (weights.up) {
      kernels.sampled_dots(x, *weights.up, {cold_of(row), h, count});
      for (std::int64_t k = 0; k < count; ++k) u[offsets[row] + places.cold_at(k)] = T(h[k]);
    }
    for (std::int64_t k = 0; k < count; ++k) {
      h[k] *= activated(kind, static_cast<float>(v[offsets[row] + places.cold_at(k)]));
    }
    return absolute_sum(h, count);
  }
};

}  // namespace twell
