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

// values[i]: from h to w h; a 0 stays one. Returns Σ h².
double weigh_places(const HiddenNorm& norm, const std::int32_t* neurons, float* values,
                    std::int64_t count);

// s of a row of `hidden` neurons.
inline float norm_factor(const HiddenNorm& norm, double squares, std::int64_t hidden) {
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(hidden) + norm.epsilon));
}

// y = s · sum + bd, rounded: `width` columns of a row from `column` on; `down`, whose rows were
// summed, may have scales of its columns. `sum` is overwritten.
void finish_row(const Kernels& kernels, const FfnForm& form, const WeightView& down, float scale,
                std::int64_t column, std::int64_t width, float* sum, void* y);

}  // namespace twell
