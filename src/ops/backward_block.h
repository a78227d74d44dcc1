// What ffn_backward() does with a block of rows, row by row.
#pragma once

#include <algorithm>

#include "ops/backward.h"

namespace twell {

// NaN of NaN, as in the dense definition.
inline float sign_of(float value) { return value > 0.0F ? 1.0F : value < 0.0F ? -1.0F : value; }

// One block of rows. T: the layer's dtype.
template <class T>
struct BackwardBlock {
  const BackwardCall& call;
  const T *v, *u;                  // of all places
  const std::int64_t* offsets;     // of the block's rows
  SparseX hot[kCoefficientKinds];  // [rows, hot neurons]
  float *dh, *dv, *du;             // of the block's places
  std::int32_t* cold_count;        // places of each row that are not hot

  std::int64_t first() const { return offsets[0]; }
  bool is_cold(std::int64_t i) const { return !call.hot.contains(call.in.pattern.neurons[i]); }

  // dh of the row's hot places, of the hot neurons from `begin` on.
  void take_hot(std::int64_t row, std::int64_t begin, std::int64_t count, const float* c) const {
    const std::int32_t* const neurons = call.in.pattern.neurons;
    const std::int32_t* const end = neurons + offsets[row + 1];
    const std::int32_t last = call.hot.list()[begin + count - 1];
    const std::int32_t* at = std::lower_bound(neurons + offsets[row], end, call.hot.list()[begin]);
    for (; at != end && *at <= last; ++at) {
      const std::int32_t place = call.hot.place(*at);
      if (place >= 0) dh[at - neurons - first()] = c[place - begin];
    }
  }

  // dh of the others, and dv, du and h of all. `list` has room for H neurons and their values.
  void differentiate(std::int64_t row, std::int32_t* list, float* values) const {
    const FfnBackward& in = call.in;
    ActiveNeurons active = {list, values, 0};
    for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      if (!is_cold(i)) continue;
      list[active.count] = in.pattern.neurons[i];
      values[active.count++] = 1.0F;
    }
    cold_count[row] = static_cast<std::int32_t>(active.count);
    call.kernels.sampled_dots(in.dy.row_bytes(first_row + row), in.down, active);
    if (call.hot.size() > 0) {
      for (const SparseX& x : hot) {
        if (x.data != nullptr) x.clear_row(row);
      }
    }
    for (std::int64_t i = offsets[row], n = 0; i < offsets[row + 1]; ++i) {
      const std::int64_t j = i - first();
      const std::int32_t place = call.hot.size() > 0 ? call.hot.place(in.pattern.neurons[i]) : -1;
      const auto pre = static_cast<float>(v[i]);
      const float g = activated(in.activation.kind, pre);
      const float up = u != nullptr ? static_cast<float>(u[i]) : 1.0F;
      const float h = g * up;
      float grad = place < 0 ? values[n++] : dh[j];
      if (in.l1 != 0.0F) grad += in.l1 * sign_of(h);
      const float to_v = grad * up * activated_slope(in.activation.kind, pre);
      const float to_u = grad * g;
      if (place >= 0) {
        hot[kDv].set(row, place, to_v);
        if (u != nullptr) hot[kDu].set(row, place, to_u);
        hot[kH].set(row, place, h);
        continue;
      }
      const std::int64_t entry = call.by_neuron.entry_of[i];
      dv[j] = call.entries[kDv][entry] = to_v;
      if (u != nullptr) du[j] = call.entries[kDu][entry] = to_u;
      call.entries[kH][entry] = h;
    }
  }

  // sum [D] (+)= the cold places' part of dx.
  void gather(std::int64_t row, std::int32_t* list, float* values, bool add, float* sum) const {
    const FfnBackward& in = call.in;
    if (cold_count[row] == 0 && add) return;
    const auto part = [&](const float* coefficients, ConstMatrixView w, bool onto) {
      ActiveNeurons active = {list, values, 0};
      for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        if (!is_cold(i)) continue;
        list[active.count] = in.pattern.neurons[i];
        values[active.count++] = coefficients[i - first()];
      }
      call.kernels.weighted_rows(w, active, onto, sum);
    };
    part(dv, in.gate, add);
    if (u != nullptr) part(du, *in.up, true);
  }

  // Hot neurons [begin, end) of the block to their rows of call.columns.
  void transpose_hot(std::int64_t begin, std::int64_t end, std::int64_t rows) const {
    for (int kind = 0; kind < kCoefficientKinds; ++kind) {
      if (!call.has(kind)) continue;
      if (hot[kind].dtype == DType::f32) {
        transpose_words<float>(hot[kind], call.columns[kind], begin, end, rows);
      } else {
        transpose_words<bf16>(hot[kind], call.columns[kind], begin, end, rows);
      }
    }
  }

  std::int64_t first_row = 0;  // of the block in the call

 private:
  template <class X>
  void transpose_words(const SparseX& from, const SparseX& to, std::int64_t begin, std::int64_t end,
                       std::int64_t rows) const {
    constexpr std::int64_t kTile = 32;  // rows: a cache line or two of each neuron
    for (std::int64_t r = 0; r < rows; r += kTile) {
      const std::int64_t count = std::min(kTile, rows - r);
      for (std::int64_t n = begin; n < end; ++n) {
        auto* out = reinterpret_cast<X*>(to.at(n, first_row + r));
        const auto* in = reinterpret_cast<const X*>(from.at(r, n));
        for (std::int64_t k = 0; k < count; ++k) out[k] = in[k * from.stride];
      }
    }
  }
};

}  // namespace twell
