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
  return layer;
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
  const double u32 = 0x1.0p-24;
  const double u16 = bf16 ? 0x1.0p-8 : u32;
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor x = wide(x_in);
  const at::Tensor first = wide(p.gated() ? p.gate : p.up);
  const auto width = static_cast<double>(x.size(1));
  const at::Tensor raw = at::linear(x, first);
  const at::Tensor raw_error =
      at::linear(x.abs(), first.abs()) * ((width + 2) * u32) + raw.abs() * u16;
  const at::Tensor g = lm::activate(raw, layer.activation);
  at::Tensor g_error = raw_error + g.abs() * u16;
  if (layer.activation.kind == io::HiddenAct::relu_squared) {
    g_error = (2 * raw.abs() + raw_error) * raw_error + g.abs() * u16;
  }
  if (layer.activation.kind == io::HiddenAct::fat_relu) {
    g_error = g_error + at::where((raw - kThreshold).abs() <= raw_error, raw.abs(), 0.0);
  }
  at::Tensor h = g;
  at::Tensor h_error = g_error;
  if (p.gated()) {
    const at::Tensor up = at::linear(x, wide(p.up));
    const at::Tensor up_error =
        at::linear(x.abs(), wide(p.up).abs()) * ((width + 2) * u32) + up.abs() * u16;
    h = g * up;
    h_error = g_error * (up.abs() + up_error) + g.abs() * up_error + h.abs() * u16;
  }
  const at::Tensor down = wide(p.down);
  Exact out;
  out.y = at::linear(h, down);
  out.bound =
      at::linear(h_error, down.abs()) +
      at::linear(h.abs() + h_error, down.abs()) * ((static_cast<double>(h.size(1)) + 2) * u32) +
      out.y.abs() * u16 + 1e-30;
  return out;
}

inline void expect_within_bound(const at::Tensor& y, const Layer& layer, const at::Tensor& x) {
  const Exact expected = exact(layer, x);
  EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(), 0.0);
}

}  // namespace twell::test
