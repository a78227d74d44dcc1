// What ffn_backward() does with a block of rows, row by row.
#pragma once

#include "ops/backward/backward_hot.h"

namespace twell {

// One block of rows. T: the layer's dtype.
template <class T>
struct BackwardBlock {
  const BackwardCall& call;
  const T *v, *u;               // of all places
  const std::int64_t* offsets;  // of the block's rows
  BackwardHot<T> hot;
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
    call.down.dots(call.in.dy.row_bytes(first_row + row), cold + at, places.cold_count(), dv + at);
    const HiddenScale scale = scale_of(row, places);
    if (call.hot.size() > 0)
      hot.differentiate(row, v + offsets[row], u != nullptr ? u + offsets[row] : nullptr, places,
                        scale);
    differentiate_cold(row, places, scale);
  }

  // sum [D] (+)= dv · gate + du · up of the places that are not hot.
  void gather(std::int64_t row, bool add, float* sum) const {
    const std::int64_t at = offsets[row] - offsets[0];
    if (cold_count[row] == 0 && add) return;
    call.gate.combine({cold + at, dv + at, cold_count[row]}, add, sum);
    if (u == nullptr) return;
    call.up->combine({cold + at, du + at, cold_count[row]}, true, sum);
  }

 private:
  HiddenScale scale_of(std::int64_t row, const RowPlaces& places) const {
    const FfnForm& form = call.in.form;
    if (!form.norm_epsilon) return {};
    double squares = 0.0, products = 0.0;
    const auto add = [&](std::int64_t place, float q) {
      const std::int64_t i = offsets[row] + place;
      const double h = hidden_at(i);
      squares += h * h;
      products += h * factor_of(form, call.in.pattern.neurons[i]) * q;
    };
    for (std::int64_t k = 0; k < places.hot_count(); ++k) {
      add(places.hot_at(k), hot.dots[row * call.hot.size() + places.hot_place(k)]);
    }
    const float* const q = dv + (offsets[row] - offsets[0]);
    for (std::int64_t k = 0; k < places.cold_count(); ++k) add(places.cold_at(k), q[k]);
    return hidden_scale(form, squares, products, call.in.pattern.cols);
  }

  // h of a place of the pattern.
  float hidden_at(std::int64_t i) const {
    return hidden_of(call.in.form, static_cast<float>(v[i]),
                     u != nullptr ? static_cast<float>(u[i]) : 1.0F);
  }

  void differentiate_cold(std::int64_t row, const RowPlaces& places,
                          const HiddenScale& scale) const {
    const FfnBackward& in = call.in;
    const std::int64_t at = offsets[row] - offsets[0];
    for (std::int64_t k = 0; k < places.cold_count(); ++k) {
      const std::int64_t i = offsets[row] + places.cold_at(k);
      const std::int64_t entry = call.by_neuron.entry_of[i];
      const auto pre = static_cast<float>(v[i]);
      const float up = u != nullptr ? static_cast<float>(u[i]) : 1.0F;
      const float h = hidden_at(i);
      float dh = dv[at + k];
      call.entries[kH][entry] = h;
      if (scales_hidden(in.form)) {
        const ScaledGradients of = scaled_gradients(in.form, scale, cold[at + k], h, dh);
        if (call.has(kDw)) call.entries[kDw][entry] = of.dw;
        call.entries[kH][entry] = of.h;
        dh = of.dh;
      }
      if (in.l1 != 0.0F) dh += in.l1 * sign_of(h);
      const auto gradients = uncombine(in.form.gate.kind, in.form.up, dh, pre, up);
      dv[at + k] = call.entries[kDv][entry] = gradients.v;
      if (u != nullptr) du[at + k] = call.entries[kDu][entry] = gradients.u;
    }
  }
};

}  // namespace twell
