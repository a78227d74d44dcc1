// What ffn_forward() does with a block of rows, row by row, once the gate is packed.
#pragma once

#include "format/twell_view.h"
#include "ops/chosen_products.h"
#include "ops/hidden.h"
#include "ops/row_places.h"

namespace twell {

// One block of rows. T: the layer's dtype.
template <class T>
struct ForwardBlock {
  const Kernels& kernels;
  const UpDown& weights;
  const FfnForm& form;
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
  std::int32_t* kept;        // [rows] places that up's activation leaves, the row's first ones
  float* scale;              // [rows] s, with a norm

  // The row's places, their u and h. Returns Σ |h|.
  double fire(std::int64_t row, const void* x, RowPlaces& places) const {
    std::int64_t end = offsets[row];
    for (std::int64_t t = 0; t < packed.tiles; ++t) {
      end += packed.unpack(row, t, neurons + end, v + end);
    }
    places.split(neurons + offsets[row], end - offsets[row], cold_of(row));
    double squares = 0.0;
    const double l1 = (hot.size() > 0 ? fire_hot(row, places, squares) : 0.0) +
                      fire_cold(row, x, places, squares);
    scale[row] = norm_factor(form, squares, weights.down.rows);
    kept[row] = static_cast<std::int32_t>(keep(row, end - offsets[row]));
    return l1;
  }

  // sum [D] (+)= h · down of the places that are not hot.
  void gather(std::int64_t row, bool add, float* sum) const {
    if (cold_count[row] == 0 && add) return;
    weights.down.combine({cold_of(row), values_of(row), cold_count[row]}, add, sum);
  }

 private:
  std::int32_t* cold_of(std::int64_t row) const { return cold + (offsets[row] - offsets[0]); }
  float* values_of(std::int64_t row) const { return values + (offsets[row] - offsets[0]); }

  // Both add Σ h² of a layer with a norm to `squares`.
  double fire_hot(std::int64_t row, const RowPlaces& places, double& squares) const {
    const std::int64_t count = hot.size();
    const std::int64_t first = offsets[row];
    float* const pre = places.dense(0);
    float* const h = places.dense(1);
    places.spread(v + first, pre);
    float* const up = weights.up ? dots + row * count : nullptr;
    if (up != nullptr) add_up_bias(form, hot.list(), count, up);
    with_kinds(form, [=](auto gate, auto fu) {
      if (up == nullptr) {
        for (std::int64_t k = 0; k < count; ++k) h[k] = activated(gate(), pre[k]);
      } else {  // what did not fire stays 0 where u is infinite
        for (std::int64_t k = 0; k < count; ++k) {
          h[k] = where_nonzero(pre[k], combine(fu(), activated(gate(), pre[k]), up[k]));
        }
      }
    });
    const double l1 = absolute_sum(h, count);
    squares += scale_places(form, hot.list(), h, count);
    hidden.set_row(row, h, count, kernels);
    if (up != nullptr) {
      T* const rounded = reinterpret_cast<T*>(pre);
      kernels.round_row(up, count, rounded);
      places.collect(rounded, u + first);
    }
    return l1;
  }

  double fire_cold(std::int64_t row, const void* x, const RowPlaces& places,
                   double& squares) const {
    const std::int64_t first = offsets[row];
    std::int32_t* const neurons_of_row = cold_of(row);
    std::int64_t count = places.cold_count();
    float* const h = values_of(row);
    for (std::int64_t k = 0; k < count; ++k) {
      h[k] = activated(form.gate.kind, static_cast<float>(v[first + places.cold_at(k)]));
    }
    if (weights.up) {
      float* const dot = places.dense(0);
      weights.up->dots(x, neurons_of_row, count, dot);
      add_up_bias(form, neurons_of_row, count, dot);
      for (std::int64_t k = 0; k < count; ++k) u[first + places.cold_at(k)] = T(dot[k]);
      count = combine_places(form, neurons_of_row, h, dot, count);
    }
    cold_count[row] = static_cast<std::int32_t>(count);
    const double l1 = absolute_sum(h, count);
    squares += scale_places(form, neurons_of_row, h, count);
    return l1;
  }

  // Takes the places of the row's lists out for which up's activation makes both h and its slope 0.
  std::int64_t keep(std::int64_t row, std::int64_t count) const {
    if (form.up == Activation::identity) return count;
    const std::int64_t first = offsets[row];
    std::int64_t left = 0;
    for (std::int64_t i = first; i < first + count; ++i) {
      const std::int64_t to = first + left;
      neurons[to] = neurons[i];
      v[to] = v[i];
      u[to] = u[i];
      const auto up = static_cast<float>(u[i]);
      const float h = hidden_of(form, static_cast<float>(v[i]), up);
      left += h != 0.0F || up_activated_slope(form.up, up) != 0.0F;  // a NaN is not 0
    }
    return left;
  }
};

}  // namespace twell
