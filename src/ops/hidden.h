// From a row's g and u to what down multiplies, and from the sums of that to y: what a form
// (twell/ffn_form.h) adds to the products of a layer, place by place and row by row.
#pragma once

#include <cmath>

#include "kernels/kernel.h"
#include "twell/ffn_form.h"

namespace twell {

// h of a place, from v and u as a pattern keeps them; without a gate u is 1.
inline float hidden_of(const FfnForm& form, float v, float u) {
  return combine(form.up, activated(form.gate.kind, v), u);
}
// u[i] += bu of neurons that lie in a list.
void add_up_bias(const FfnForm& form, const std::int32_t* neurons, std::int64_t count, float* u);
// u[i] = fu(u[i]).
void activate_up(const FfnForm& form, std::int64_t count, float* u);

// values[i]: from g to h, with u of the same neurons. Returns how many places are left: those whose
// h is 0 are taken out of both lists where up has an activation.
std::int64_t combine_places(const FfnForm& form, std::int32_t* neurons, float* values,
                            const float* u, std::int64_t count);

// w h of a neuron. What did not fire stays 0 where the factor is infinite.
inline float scaled_hidden(const FfnForm& form, std::int64_t neuron, float h) {
  return h == 0.0F ? 0.0F : h * factor_of(form, neuron);
}
// values[i]: from h to w h, where scales_hidden(form). Returns Σ h², or 0 where it does not.
double scale_places(const FfnForm& form, const std::int32_t* neurons, float* values,
                    std::int64_t count);

// s of a row of `hidden` neurons; 1 without a norm.
inline float norm_factor(const FfnForm& form, double squares, std::int64_t hidden) {
  if (!form.norm_epsilon) return 1.0F;
  return static_cast<float>(1.0 /
                            std::sqrt(squares / static_cast<double>(hidden) + *form.norm_epsilon));
}

// Backward, of a row: s, and c = s³ / H · Σ h w q, where q = dy · down. Without a norm 1 and 0.
struct HiddenScale {
  float s = 1, c = 0;
};
inline HiddenScale hidden_scale(const FfnForm& form, double squares, double products,
                                std::int64_t hidden) {
  const float s = norm_factor(form, squares, hidden);
  if (!form.norm_epsilon) return {s, 0.0F};
  return {s, static_cast<float>(products * s * s * s / static_cast<double>(hidden))};
}
// Of a neuron: s w h, which the gradient of down multiplies, dh without its L1 term, and s h q,
// from which the gradients of factors come.
struct ScaledGradients {
  float h, dh, dw;
};
inline ScaledGradients scaled_gradients(const FfnForm& form, const HiddenScale& row,
                                        std::int64_t neuron, float h, float q) {
  const float factor = row.s * factor_of(form, neuron);
  return {factor * h, factor * q - row.c * h, row.s * h * q};
}

// y = s · sum + bd, rounded: `width` columns of a row from `column` on; `down`, whose rows were
// summed, may have scales of its columns. `sum` is overwritten.
void finish_row(const Kernels& kernels, const FfnForm& form, const WeightView& down, float scale,
                std::int64_t column, std::int64_t width, float* sum, void* y);

}  // namespace twell
