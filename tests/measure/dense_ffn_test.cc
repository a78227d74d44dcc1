// Every dense variant computes the layer; the error measure measures.
#include "measure/dense_ffn.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "measure/reference.h"

namespace twell::lm {
namespace {

// {gated, with biases}
constexpr std::pair<bool, bool> kForms[] = {
    {true, false}, {false, false}, {true, true}, {false, true}};

TEST(DenseFfn, EveryFormMatchesTheReference) {
  for (const auto& [gated, biases] : kForms) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      for (const auto& activation : {ActivationChoice{io::HiddenAct::relu, 0},
                                     ActivationChoice{io::HiddenAct::relu_squared, 0},
                                     ActivationChoice{io::HiddenAct::fat_relu, 0.25F}}) {
        SyntheticShape shape;
        shape.width = 96;
        shape.neurons = 320;
        shape.gated = gated;
        shape.biases = biases;
        shape.dtype = dtype;
        shape.activity.mean_nnz = 20;
        const SyntheticLayer layer = synthetic_layer(shape, 3);
        for (const std::int64_t tokens : {1, 17}) {
          const at::Tensor x = synthetic_inputs(shape, tokens, 3);
          const at::Tensor expected = reference_ffn(layer, activation, x);
          const auto variants = available_variants(layer, activation, tokens);
          EXPECT_EQ(variants.front(), DenseVariant::linear);
          EXPECT_GE(variants.size(), gated ? 2U : 1U);
          for (const DenseVariant variant : variants) {
            // Four roundings to the type (gate, up, product; output), fp32 sums of up to 320 terms:
            // six units of the type stay on the safe side of both.
            const double unit = std::ldexp(1.0, dtype == at::kFloat ? -22 : -8);
            EXPECT_LT(max_rel_err(DenseFfn(variant, layer, activation, tokens)(x), expected),
                      6 * unit)
                << name_of(variant) << " gated " << gated << " biases " << biases << " tokens "
                << tokens;
          }
        }
      }
    }
  }
}

// The reference itself, by the definition spelled out.
TEST(ReferenceFfn, IsTheDefinition) {
  for (const auto& [gated, biases] : kForms) {
    SyntheticShape shape;
    shape.width = 24;
    shape.neurons = 40;
    shape.gated = gated;
    shape.biases = biases;
    shape.activity.mean_nnz = 10;
    const SyntheticLayer layer = synthetic_layer(shape, 3);
    const at::Tensor x = synthetic_inputs(shape, 5, 3);
    const SyntheticLayer wide = layer.map([](const at::Tensor& t) { return t.to(at::kDouble); });
    const auto project = [](const at::Tensor& in, const at::Tensor& w, const at::Tensor& b) {
      const at::Tensor out = in.matmul(w.t());
      return b.defined() ? out + b : out;
    };
    const at::Tensor in = x.to(at::kDouble);
    at::Tensor h = at::relu(project(in, wide.gate, wide.gate_bias));
    if (gated) h = h * project(in, wide.up, wide.up_bias);
    const at::Tensor expected = project(h, wide.down, wide.down_bias);
    // fp64: sums of 24 and of 40 terms in another order; a term is no larger than the row's
    // largest output times 40.
    EXPECT_LT(max_rel_err(reference_ffn(layer, {io::HiddenAct::relu, 0}, x), expected),
              std::ldexp((24.0 + 40) * 40, -53));
    if (biases) {
      EXPECT_GT(max_rel_err(expected, project(h, wide.down, {})), 1e-3) << "no bias of down";
    }
  }
}

TEST(DenseFfn, DoesNotTouchItsInputs) {
  SyntheticShape shape;
  shape.width = 32;
  shape.neurons = 64;
  shape.activity.mean_nnz = 8;
  const SyntheticLayer layer = synthetic_layer(shape, 3);
  const at::Tensor x = synthetic_inputs(shape, 4, 3);
  const at::Tensor before = x.clone(), gate = layer.gate.clone();
  const ActivationChoice relu{io::HiddenAct::relu, 0};
  for (const DenseVariant variant : available_variants(layer, relu, 4))
    DenseFfn(variant, layer, relu, 4)(x);
  EXPECT_TRUE(at::equal(x, before));
  EXPECT_TRUE(at::equal(layer.gate, gate));
}

TEST(MaxRelErr, IsRelativeToTheLargestOfTheRow) {
  const at::Tensor expected = at::tensor({1.0, -10.0, 0.0, 0.0}, at::kDouble).view({2, 2});
  const at::Tensor got = at::tensor({1.5, -10.0, 0.0, 0.25}, at::kDouble).view({2, 2});
  // 0.5 of 10 in the first row; the second row is all zero, so its error counts as it is.
  EXPECT_DOUBLE_EQ(max_rel_err(got, expected), 0.25);
  EXPECT_DOUBLE_EQ(max_rel_err(expected, expected), 0.0);
  const at::Tensor broken = at::full({2, 2}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(max_rel_err(broken, expected)));
}

}  // namespace
}  // namespace twell::lm
