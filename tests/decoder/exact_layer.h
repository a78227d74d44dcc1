// Feed-forward layers of random weights, and what they compute in fp64.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "decoder/feed_forward.h"

namespace twell::test {

struct LayerCase {
  io::HiddenAct act;
  bool gated;
  at::ScalarType dtype;
  bool biases = false;
  Activation up = Activation::identity;
  bool norm = false;
};

constexpr float kThreshold = 0.05F;

struct Layer {
  lm::FfnParameters parameters;
  lm::ActivationChoice activation;
};

inline Layer make_layer(const LayerCase& c, std::int64_t width, std::int64_t neurons) {
  at::manual_seed(3);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return (at::randn({rows, cols}) / std::sqrt(static_cast<double>(cols))).to(c.dtype);
  };
  Layer layer;
  layer.activation = {c.act, c.act == io::HiddenAct::fat_relu ? kThreshold : 0.0F};
  if (c.gated) layer.parameters.gate = matrix(neurons, width);
  layer.parameters.up = matrix(neurons, width);
  layer.parameters.down = matrix(width, neurons);
  const auto vector = [&](std::int64_t size, double mean) {
    return (at::randn({size}) * 0.2 + mean).to(c.dtype);
  };
  if (c.biases) {
    if (c.gated) layer.parameters.gate_bias = vector(neurons, 0);
    layer.parameters.up_bias = vector(neurons, 0);
    layer.parameters.down_bias = vector(width, 0);
  }
  layer.activation.up = c.up;
  if (c.norm) {
    layer.activation.norm_eps = 1e-5;
    layer.parameters.norm_weight = vector(neurons, 1);
  }
  return layer;
}

// A value and how far a path may be from it.
struct Known {
  at::Tensor is, error;
};
// x Wᵀ + b. Where a bias is added to a product that was rounded, there is one rounding more.
inline Known known_product(const Known& x, const at::Tensor& weight, const at::Tensor& bias,
                           double u16) {
  const double sum = (static_cast<double>(weight.size(1)) + 2) * 0x1.0p-24;
  Known out{at::linear(x.is, weight), at::linear(x.error, weight.abs()) +
                                          at::linear(x.is.abs() + x.error, weight.abs()) * sum};
  if (bias.defined()) {
    out.error = out.error + (out.is.abs() + bias.abs()) * u16;
    out.is = out.is + bias;
  }
  out.error = out.error + out.is.abs() * u16;
  return out;
}
// max(v, 0)², rounded.
inline Known known_square(const Known& v, double u16) {
  const at::Tensor is = at::relu(v.is).square();
  return {is, (2 * v.is.abs() + v.error) * v.error + is * u16};
}
// w h / S with S = √(mean(h²) + ε). The root of the mean of the errors' squares is the most that S
// may be off by.
inline Known known_norm(const Known& h, const at::Tensor& weight, double eps, double u16) {
  const at::Tensor size = (h.is.square().mean(-1, true) + eps).sqrt();
  const at::Tensor off = h.error.square().mean(-1, true).sqrt();
  const at::Tensor least = (size - off).clamp_min(1e-30);
  const at::Tensor is = h.is / size * weight;
  const double sum = (static_cast<double>(h.is.size(1)) + 8) * 0x1.0p-24;
  return {is,
          (h.is.abs() * (off / size) + h.error) / least * weight.abs() + is.abs() * (u16 + sum)};
}

// y in fp64 and how far a path with fp32 accumulation may be from it: (n + 2) u per sum of n terms
// with u = 2^-24, and where values are rounded to bf16, 2^-8 for g (twice where squared), u, h, y.
// A gate near zero may fall on the other side; the activations are Lipschitz there, so the same
// bound holds - but for fat_relu, whose step of size `threshold` is allowed for where g is near it.
struct Exact {
  at::Tensor y, bound;
};
inline Exact exact(const Layer& layer, const at::Tensor& x_in) {
  const lm::FfnParameters& p = layer.parameters;
  const bool bf16 = x_in.scalar_type() == at::kBFloat16;
  const double u16 = bf16 ? 0x1.0p-8 : 0x1.0p-24;
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto wide_or_none = [&](const at::Tensor& t) { return t.defined() ? wide(t) : t; };
  const Known x{wide(x_in), at::zeros(x_in.sizes(), at::kDouble)};
  const Known raw = known_product(x, wide(p.gated() ? p.gate : p.up),
                                  wide_or_none(p.gated() ? p.gate_bias : p.up_bias), u16);
  Known g{lm::activate(raw.is, layer.activation), {}};
  g.error = raw.error + g.is.abs() * u16;
  if (layer.activation.kind == io::HiddenAct::relu_squared) g = known_square(raw, u16);
  if (layer.activation.kind == io::HiddenAct::fat_relu) {
    g.error = g.error + at::where((raw.is - kThreshold).abs() <= raw.error, raw.is.abs(), 0.0);
  }
  Known h = g;
  if (p.gated()) {
    Known up = known_product(x, wide(p.up), wide_or_none(p.up_bias), u16);
    if (layer.activation.up == Activation::relu) up.is = at::relu(up.is);
    if (layer.activation.up == Activation::relu_squared) up = known_square(up, u16);
    h.is = g.is * up.is;
    h.error = g.error * (up.is.abs() + up.error) + g.is.abs() * up.error + h.is.abs() * u16;
  }
  if (layer.activation.norm_eps) {
    h = known_norm(h, wide(p.norm_weight), *layer.activation.norm_eps, u16);
  }
  const Known y = known_product(h, wide(p.down), wide_or_none(p.down_bias), u16);
  return {y.is, y.error + 1e-30};
}

inline void expect_within_bound(const at::Tensor& y, const Layer& layer, const at::Tensor& x) {
  const Exact expected = exact(layer, x);
  EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(), 0.0);
}

}  // namespace twell::test
