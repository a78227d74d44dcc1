// What ffn_backward() does with a block of rows, row by row.
#pragma once

#include <algorithm>

#include "ops/backward.h"
#include "ops/row_places.h"

namespace twell {

// NaN of NaN, as in the dense definition. No branches: in a loop it becomes vectors.
inline float sign_of(float value) {
  const bool above = value > 0.0F, below = value < 0.0F, nan = value != value;
  const float sign = (above ? 1.0F : 0.0F) - (below ? 1.0F : 0.0F);
  return nan ? value : sign;
}

// One block of rows. T: the layer's dtype.
template <class T>
struct BackwardBlock {
  const BackwardCall& call;
  const T *v, *u;                  // of all places
  const std::int64_t* offsets;     // of the block's rows
  SparseX hot[kCoefficientKinds];  // [rows, hot neurons]
  float* dots;                     // [rows, hot neurons]: dh
  // Places that are not hot, and their coefficients; those of a row from where its places start in
  // the block.
  std::int32_t* cold;
  float *dv, *du;
  std::int32_t* cold_count;    // [rows]
  std::int64_t first_row = 0;  // of the block in the call

  // dh, and from it dv, du and h of the row's places.
  void differentiate(std::int64_t row, RowPlaces& places) const {
    const std::int64_t at = offsets[row] - offsets[0];
    places.split(call.in.pattern.neurons + offsets[row], offsets[row + 1] - offsets[row],
                 cold + at);
    cold_count[row] = static_cast<std::int32_t>(places.cold_count());
    if (call.hot.size() > 0) differentiate_hot(row, places);
    differentiate_cold(row, places);
  }

  // sum [D] (+)= dv · gate + du · up of the places that are not hot.
  void gather(std::int64_t row, bool add, float* sum) const {
    const std::int64_t at = offsets[row] - offsets[0];
    if (cold_count[row] == 0 && add) return;
    call.kernels.weighted_rows(call.in.gate, {cold + at, dv + at, cold_count[row]}, add, sum);
    if (u == nullptr) return;
    call.kernels.weighted_rows(*call.in.up, {cold + at, du + at, cold_count[row]}, true, sum);
  }

  // Rows, or neurons: a cache line or two of each.
  static constexpr std::int64_t kHotUnit = 32;
  // Hot neurons [begin, end) of the block to their rows of call.columns.
  void transpose_hot(std::int64_t begin, std::int64_t end, std::int64_t rows) const {
    for (int kind = 0; kind < kCoefficientKinds; ++kind) {
      if (!call.has(kind)) continue;
      if (hot[kind].dtype == DType::f32) {
        transpose_hot<float>(hot[kind], call.columns[kind], begin, end, rows);
      } else {
        transpose_hot<bf16>(hot[kind], call.columns[kind], begin, end, rows);
      }
    }
  }

 private:
  void differentiate_hot(std::int64_t row, const RowPlaces& places) const {
    const std::int64_t count = call.hot.size();
    const float l1 = call.in.l1;
    float* const dh = dots + row * count;
    float* const pre = places.dense(0);
    float* const up = places.dense(1);
    float* const out = places.dense(2);
    const auto store = [&](Coefficient which) {
      hot[which].set_row(row, out, count, call.kernels);
    };
    places.spread(v + offsets[row], pre);
    if (u != nullptr) {
      places.spread(u + offsets[row], up);
    } else {
      std::fill_n(up, count, 1.0F);
    }
    with_kind(call.in.activation.kind, [&](auto kind) {
      for (std::int64_t k = 0; k < count; ++k) out[k] = activated(kind(), pre[k]) * up[k];
      store(kH);
      if (l1 != 0.0F) {
        for (std::int64_t k = 0; k < count; ++k) dh[k] += l1 * sign_of(out[k]);
      }
      // What did not fire stays 0 where dh is infinite.
      for (std::int64_t k = 0; k < count; ++k) {
        out[k] = where_nonzero(pre[k], dh[k] * up[k] * activated_slope(kind(), pre[k]));
      }
      store(kDv);
      if (u == nullptr) return;
      for (std::int64_t k = 0; k < count; ++k) {
        out[k] = where_nonzero(pre[k], dh[k] * activated(kind(), pre[k]));
      }
      store(kDu);
    });
  }

  void differentiate_cold(std::int64_t row, const RowPlaces& places) const {
    const FfnBackward& in = call.in;
    const std::int64_t at = offsets[row] - offsets[0];
    const std::int64_t count = places.cold_count();
    std::fill_n(dv + at, count, 1.0F);
    call.kernels.sampled_dots(in.dy.row_bytes(first_row + row), in.down,
                              {cold + at, dv + at, count});
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t i = offsets[row] + places.cold_at(k);
      const auto pre = static_cast<float>(v[i]);
      const float g = activated(in.activation.kind, pre);
      const float up = u != nullptr ? static_cast<float>(u[i]) : 1.0F;
      const float h = g * up;
      float dh = dv[at + k];
      if (in.l1 != 0.0F) dh += in.l1 * sign_of(h);
      const std::int64_t entry = call.by_neuron.entry_of[i];
      dv[at + k] = call.entries[kDv][entry] = dh * up * activated_slope(in.activation.kind, pre);
      if (u != nullptr) du[at + k] = call.entries[kDu][entry] = dh * g;
      call.entries[kH][entry] = h;
    }
  }

  template <class X>
  void transpose_hot(const SparseX& from, const SparseX& to, std::int64_t begin, std::int64_t end,
                     std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; r += kHotUnit) {
      const std::int64_t count = std::min(kHotUnit, rows - r);
      // What comes next, from L3: not to be waited for line by line.
      for (std::int64_t k = 0; k < count; ++k) __builtin_prefetch(from.at(r + kHotUnit + k, begin));
      for (std::int64_t n = begin; n < end; ++n) {
        auto* out = reinterpret_cast<X*>(to.at(n, first_row + r));
        const auto* in = reinterpret_cast<const X*>(from.at(r, n));
        for (std::int64_t k = 0; k < count; ++k) out[k] = in[k * from.stride];
      }
    }
  }
};

}  // namespace twell
