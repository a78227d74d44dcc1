// A forward and a backward pass, what the first keeps as matrices, and how close gradients must be.
#pragma once

#include "tests/ops/ffn_fixture.h"
#include "twell/train.h"

namespace twell::test {

// Everything of a forward and a backward pass, of weight gradients in G.
template <class T, class G = float>
struct Pass {
  explicit Pass(const Layer<T>& layer)
      : y(layer.shape.tokens, layer.shape.depth, 1),
        dy(random_matrix<T>(layer.shape.tokens, layer.shape.depth, 9, 1.0F, 2)),
        dx(layer.shape.tokens, layer.shape.depth, 3),
        gate(layer.shape.neurons, layer.shape.depth, 1),
        up(layer.shape.neurons, layer.shape.depth, 2),
        down(layer.shape.neurons, layer.shape.depth) {}

  FfnGradients gradients(bool gated, bool accumulate = false) {
    FfnGradients out = {dx.view(), gate.view(), {}, down.view(), accumulate};
    if (gated) out.up = up.view();
    return out;
  }
  FfnBackward input(const Layer<T>& layer, float l1) const {
    FfnBackward in = {dy.view(),         layer.x.view(), layer.gate.view(),      {},
                      layer.down.view(), pattern.view(), layer.shape.activation, l1};
    if (layer.shape.gated) in.up = layer.up.view();
    return in;
  }

  TestMatrix<T> y, dy, dx;
  TestMatrix<G> gate, up, down;
  FfnPattern pattern;
  FfnCounts counts;
};

// The pattern as matrices, checked: ascending neurons, v where x Wgᵀ is above the threshold.
template <class T>
ref::BackwardInput widened(const Layer<T>& layer, const FfnPatternView& pattern) {
  const Case& c = layer.shape;
  ref::BackwardInput in;
  in.x = ref::widen(layer.x.view());
  in.gate = ref::widen(layer.gate.view());
  in.up = ref::widen(layer.up.view());
  in.down = ref::widen(layer.down.view());
  in.fired = in.v = in.u = ref::Matrix(c.tokens, c.neurons);
  in.gated = c.gated;
  in.form = c.activation;
  for (std::int64_t r = 0; r < pattern.rows; ++r) {
    std::int64_t before = -1;
    for (std::int64_t i = pattern.offsets[r]; i < pattern.offsets[r + 1]; ++i) {
      const std::int64_t n = pattern.neurons[i];
      EXPECT_GT(n, before);
      EXPECT_LT(n, c.neurons);
      before = n;
      in.fired.at(r, n) = 1.0;
      in.v.at(r, n) = static_cast<float>(static_cast<const T*>(pattern.v)[i]);
      if (c.gated) in.u.at(r, n) = static_cast<float>(static_cast<const T*>(pattern.u)[i]);
    }
  }
  return in;
}

// `terms` of the longest sum; where h, dv and du may be rounded to T they err by half a unit each.
template <class T, class G>
void expect_gradient(const char* name, const TestMatrix<G>& got, const ref::Result& exact,
                     double terms, bool rounded) {
  SCOPED_TRACE(name);
  const double coarse =
      rounded && dtype_of<T>::value == DType::bf16 ? 1.01 * std::ldexp(1.0, -8) : 0.0;
  for (std::int64_t r = 0; r < got.rows(); ++r) {
    for (std::int64_t c = 0; c < got.cols(); ++c) {
      const double expected = exact.value.at(r, c);
      const double value = got.value(r, c);
      if (!std::isfinite(expected)) {
        ASSERT_FALSE(std::isfinite(value)) << r << "," << c << ": " << value << " for " << expected;
        ASSERT_TRUE(std::isnan(expected) || same(value, expected) || std::isnan(value));
        continue;
      }
      const double magnitude = exact.magnitude.at(r, c);
      const double bound = accumulation_bound(terms, magnitude) + coarse * magnitude;
      ASSERT_NEAR(value, expected, bound + 1.01 * rounding_bound<G>(std::abs(expected) + bound))
          << r << "," << c;
    }
  }
}

}  // namespace twell::test
