#include <cmath>

#include "kernels/ref/ref.h"

namespace twell::ref {
namespace {

// x Wᵀ + bias.
Result products(const Matrix& x, const Matrix& w, std::span<const float> bias) {
  Result out = {Matrix(x.rows, w.rows), Matrix(x.rows, w.rows)};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(n)];
      double magnitude = std::abs(sum);
      for (std::int64_t k = 0; k < x.cols; ++k) {
        sum += x.at(r, k) * w.at(n, k);
        magnitude += std::abs(x.at(r, k) * w.at(n, k));
      }
      out.value.at(r, n) = sum;
      out.magnitude.at(r, n) = magnitude;
    }
  }
  return out;
}

}  // namespace

LayerResult ffn(const Layer& layer) {
  const FfnForm& form = layer.form;
  const Matrix &x = layer.x, &down = layer.down;
  const bool gated = layer.up.rows > 0;
  LayerResult out;
  out.v = products(x, layer.gate, form.gate_bias);
  if (gated) out.u = products(x, layer.up, form.up_bias);
  out.h = Matrix(x.rows, down.rows);
  out.scale.assign(static_cast<std::size_t>(x.rows), 1.0);
  out.y = Matrix(x.rows, down.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    double squares = 0.0;
    for (std::int64_t n = 0; n < down.rows; ++n) {
      double& h = out.h.at(r, n);
      h = activate(out.v.value.at(r, n), form.gate);
      if (gated) h = combine(form.up, h, out.u.value.at(r, n));
      squares += h * h;
    }
    double& scale = out.scale[static_cast<std::size_t>(r)];
    if (form.norm_epsilon) {
      scale = 1.0 / std::sqrt(squares / static_cast<double>(down.rows) + *form.norm_epsilon);
    }
    for (std::int64_t n = 0; n < down.rows; ++n) {
      const double scaled = out.h.at(r, n) * scale * factor_of(form, n);
      for (std::int64_t c = 0; c < down.cols; ++c) out.y.at(r, c) += scaled * down.at(n, c);
    }
    for (std::int64_t c = 0; c < down.cols; ++c) out.y.at(r, c) += bias_of(form.down_bias, c);
  }
  return out;
}

}  // namespace twell::ref
