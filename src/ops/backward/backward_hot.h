// The hot neurons' part of a block of rows in ffn_backward(): what BackwardBlock does place by
// place is done to dense rows of them.
#pragma once

#include <algorithm>

#include "ops/backward/backward.h"
#include "ops/hidden.h"
#include "ops/row_places.h"

namespace twell {

// NaN of NaN, as in the dense definition. No branches: in a loop it becomes vectors.
inline float sign_of(float value) {
  const bool above = value > 0.0F, below = value < 0.0F, nan = value != value;
  const float sign = (above ? 1.0F : 0.0F) - (below ? 1.0F : 0.0F);
  return nan ? value : sign;
}

// T: the layer's dtype.
template <class T>
struct BackwardHot {
  const BackwardCall& call;
  SparseX values[kCoefficientKinds];  // [rows, hot neurons]: the coefficients
  float* dots = nullptr;              // [rows, hot neurons]: q, then dh

  // dh of a row, from it dv and du, and h. v, u: of the row's places.
  void differentiate(std::int64_t row, const T* v, const T* u, const RowPlaces& places,
                     const HiddenScale& scale) const {
    const std::int64_t count = call.hot.size();
    const float l1 = call.in.l1;
    float* const dh = dots + row * count;
    float* const pre = places.dense(0);
    float* const up = places.dense(1);
    float* const out = places.dense(2);
    places.spread(v, pre);
    if (u != nullptr) {
      places.spread(u, up);
    } else {
      std::fill_n(up, count, 1.0F);
    }
    with_kinds(call.in.form, [&](auto gate, auto fu) {
      for (std::int64_t k = 0; k < count; ++k) {
        out[k] = combine(fu(), activated(gate(), pre[k]), up[k]);
      }
      if (scales_hidden(call.in.form)) {
        scale_hidden(row, scale, pre, out, dh, places.dense(3));
      } else {
        store(row, kH, out);
      }
      if (l1 != 0.0F) {
        for (std::int64_t k = 0; k < count; ++k) dh[k] += l1 * sign_of(out[k]);
      }
      // What did not fire stays 0 where dh is infinite.
      for (std::int64_t k = 0; k < count; ++k) {
        out[k] = where_nonzero(pre[k], uncombine(gate(), fu(), dh[k], pre[k], up[k]).v);
      }
      store(row, kDv, out);
      if (u == nullptr) return;
      for (std::int64_t k = 0; k < count; ++k) {
        out[k] = where_nonzero(pre[k], uncombine(gate(), fu(), dh[k], pre[k], up[k]).u);
      }
      store(row, kDu, out);
    });
  }

  // Rows, or neurons: a cache line or two of each.
  static constexpr std::int64_t kUnit = 32;
  // Hot neurons [begin, end) of the block to their rows of call.columns; the block begins with
  // row `first_row` of the call.
  void transpose(std::int64_t begin, std::int64_t end, std::int64_t first_row,
                 std::int64_t rows) const {
    for (int kind = 0; kind < kCoefficientKinds; ++kind) {
      if (!call.has(kind)) continue;
      if (values[kind].dtype == DType::f32) {
        transpose<float>(values[kind], call.columns[kind], begin, end, first_row, rows);
      } else {
        transpose<bf16>(values[kind], call.columns[kind], begin, end, first_row, rows);
      }
    }
  }

 private:
  void store(std::int64_t row, Coefficient which, const float* from) const {
    values[which].set_row(row, from, call.hot.size(), call.kernels);
  }

  // dq: from q to dh, but for its L1 term; stores s w h and s h q.
  void scale_hidden(std::int64_t row, const HiddenScale& scale, const float* pre, const float* h,
                    float* dq, float* out) const {
    const std::int64_t count = call.hot.size();
    const auto gradients = [&](std::int64_t k) {
      return scaled_gradients(call.in.form, scale, call.hot.list()[k], h[k], dq[k]);
    };
    if (call.has(kDw)) {
      for (std::int64_t k = 0; k < count; ++k) out[k] = where_nonzero(pre[k], gradients(k).dw);
      store(row, kDw, out);
    }
    for (std::int64_t k = 0; k < count; ++k) {
      const ScaledGradients of = gradients(k);
      out[k] = where_nonzero(pre[k], of.h);
      dq[k] = of.dh;
    }
    store(row, kH, out);
  }

  template <class X>
  static void transpose(const SparseX& from, const SparseX& to, std::int64_t begin,
                        std::int64_t end, std::int64_t first_row, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; r += kUnit) {
      const std::int64_t count = std::min(kUnit, rows - r);
      // What comes next, from L3: not to be waited for line by line.
      for (std::int64_t k = 0; k < count; ++k) __builtin_prefetch(from.at(r + kUnit + k, begin));
      for (std::int64_t n = begin; n < end; ++n) {
        auto* out = reinterpret_cast<X*>(to.at(n, first_row + r));
        const auto* in = reinterpret_cast<const X*>(from.at(r, n));
        for (std::int64_t k = 0; k < count; ++k) out[k] = in[k * from.stride];
      }
    }
  }
};

}  // namespace twell
