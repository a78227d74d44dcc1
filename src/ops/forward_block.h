// What ffn_forward() does with a block of rows, row by row, once the gate is packed.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/chosen_products.h"
#include "ops/hot_set.h"

namespace twell {

// One block of rows. T: the layer's dtype.
template <class T>
struct ForwardBlock {
  const Kernels& kernels;
  const FfnWeights& weights;
  Activation kind;
  const TwellView& packed;
  const HotSet& hot;
  SparseX hidden;               // [rows, hot neurons]
  const std::int64_t* offsets;  // of the block's rows
  std::int32_t* neurons;
  T *v, *u;
  std::int32_t* cold_count;  // [rows] places that are not hot

  // The row's places, from the packed gate.
  void take(std::int64_t row) const {
    std::int64_t i = offsets[row];
    for (std::int64_t t = 0; t < packed.tiles; ++t) {
      packed.for_each_slot(row, t, [&](std::int32_t neuron, float value) {
        neurons[i] = neuron;
        v[i++] = static_cast<T>(value);
      });
    }
    cold_count[row] = static_cast<std::int32_t>(i - offsets[row]);
    if (hot.size() == 0) return;
    hidden.clear_row(row);
    for (i = offsets[row]; i < offsets[row + 1]; ++i) {
      const std::int32_t place = hot.place(neurons[i]);
      cold_count[row] -= place >= 0;
      if (place < 0 || weights.up) continue;  // h comes with u
      hidden.set(row, place, activated(kind, static_cast<float>(v[i])));
    }
  }

  // u and h of the row's hot places, of the hot neurons from `first` on.
  void take_up(std::int64_t row, std::int64_t first, std::int64_t count, const float* c) const {
    const std::int32_t last = hot.list()[first + count - 1];
    const std::int32_t* const begin = neurons + offsets[row];
    const std::int32_t* const end = neurons + offsets[row + 1];
    std::int64_t i = std::lower_bound(begin, end, hot.list()[first]) - neurons;
    for (; i < offsets[row + 1] && neurons[i] <= last; ++i) {
      const std::int32_t place = hot.place(neurons[i]);
      if (place < 0) continue;
      const float value = c[place - first];
      u[i] = static_cast<T>(value);
      hidden.set(row, place, activated(kind, static_cast<float>(v[i])) * value);
    }
  }

  // The other places: u, h, and their part of sum [D]. `list` and `values` have room for H. Returns
  // Σ |h| of all places.
  double finish(std::int64_t row, const void* x, std::int32_t* list, float* values, bool add,
                float* sum) const {
    ActiveNeurons active = {list, values, 0};
    if (cold_count[row] > 0) {
      for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        if (hot.contains(neurons[i])) continue;
        list[active.count] = neurons[i];
        values[active.count++] = 1.0F;
      }
      if (weights.up) kernels.sampled_dots(x, *weights.up, active);
      for (std::int64_t i = offsets[row], n = 0; i < offsets[row + 1]; ++i) {
        if (hot.contains(neurons[i])) continue;
        if (weights.up) u[i] = static_cast<T>(values[n]);
        values[n++] *= activated(kind, static_cast<float>(v[i]));
      }
    }
    kernels.weighted_rows(weights.down, active, add, sum);
    double l1 = 0.0;
    for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      const float g = activated(kind, static_cast<float>(v[i]));
      l1 += std::fabs(weights.up ? g * static_cast<float>(u[i]) : g);
    }
    return l1;
  }
};

}  // namespace twell
