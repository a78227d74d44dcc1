#include "ops/hidden.h"

namespace twell {

void add_up_bias(const FfnForm& form, const std::int32_t* neurons, std::int64_t count, float* u) {
  if (form.up_bias.empty()) return;
  for (std::int64_t i = 0; i < count; ++i) u[i] += bias_of(form.up_bias, neurons[i]);
}

void activate_up(const FfnForm& form, std::int64_t count, float* u) {
  if (form.up == Activation::identity) return;
  for (std::int64_t i = 0; i < count; ++i) u[i] = up_activated(form.up, u[i]);
}

std::int64_t combine_places(const FfnForm& form, std::int32_t* neurons, float* values,
                            const float* u, std::int64_t count) {
  if (form.up == Activation::identity) {
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = combine(Activation::identity, values[i], u[i]);
    return count;
  }
  std::int64_t left = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    neurons[left] = neurons[i];
    values[left] = combine(form.up, values[i], u[i]);
    left += values[left] != 0.0F;  // a NaN is not
  }
  return left;
}

double scale_places(const FfnForm& form, const std::int32_t* neurons, float* values,
                    std::int64_t count) {
  double squares = 0.0;
  if (!scales_hidden(form)) return squares;
  for (std::int64_t i = 0; i < count; ++i) {
    squares += static_cast<double>(values[i]) * values[i];
    values[i] = scaled_hidden(form, neurons[i], values[i]);
  }
  return squares;
}

void finish_row(const Kernels& kernels, const FfnForm& form, const WeightView& down, float scale,
                std::int64_t column, std::int64_t width, float* sum, void* y) {
  if (down.column_scales() != nullptr) {
    const float* scales = down.column_scales() + column;
    for (std::int64_t k = 0; k < width; ++k) sum[k] *= scales[k];
  }
  if (form.norm_epsilon) {
    for (std::int64_t k = 0; k < width; ++k) sum[k] *= scale;
  }
  if (!form.down_bias.empty()) {
    const float* bias = form.down_bias.data() + column;
    for (std::int64_t k = 0; k < width; ++k) sum[k] += bias[k];
  }
  kernels.round_row(sum, width, y);
}

}  // namespace twell
