// Which outputs are NaN and which infinite, against the dense definition, in which 0 · ∞ is NaN.
#include <cmath>
#include <limits>

#include "tests/ops/ffn_fixture.h"
#include "twell/train.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The layer with nothing skipped.
template <class T>
ref::LayerResult dense(const Layer<T>& layer, const FfnForm& form) {
  return ref::ffn({ref::widen(layer.x.view()), ref::widen(layer.gate.view()),
                   layer.shape.gated ? ref::widen(layer.up.view()) : ref::Matrix(),
                   ref::widen(layer.down.view()), form});
}

template <class T>
void expect_same_kinds(const TestMatrix<T>& y, const ref::Matrix& wanted) {
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    for (std::int64_t k = 0; k < y.cols(); ++k) {
      const double want = wanted.at(r, k);
      const double got = y.value(r, k);
      ASSERT_EQ(std::isfinite(got), std::isfinite(want)) << r << "," << k << ": " << got;
      if (!std::isfinite(want)) {
        ASSERT_TRUE(same(got, want)) << r << "," << k << ": " << got << " for " << want;
      }
    }
  }
}

// For few and many hot neurons.
template <class F>
void on_every_path(F f) {
  test::on_every_path({{}, 0.0}, 2, f);
}

template <class T>
void expect_inference_as_dense(const Layer<T>& layer, const FfnForm& form) {
  const ref::Matrix wanted = dense(layer, form).y;
  on_every_path([&](Context& context) {
    TestMatrix<T> y(layer.shape.tokens, layer.shape.depth);
    ffn(context, layer.x.view(), layer.weights(), form, y.view());
    expect_same_kinds(y, wanted);
    ffn(context, layer.x.view(), layer.screened(), form, y.view());
    expect_same_kinds(y, wanted);
  });
}

template <class T>
void expect_training_as_dense(const Layer<T>& layer, const FfnForm& form) {
  const ref::LayerResult wanted = dense(layer, form);
  const bool h_nan = std::any_of(wanted.h.data.begin(), wanted.h.data.end(),
                                 [](double h) { return std::isnan(h); });
  on_every_path([&](Context& context) {
    TestMatrix<T> y(layer.shape.tokens, layer.shape.depth);
    FfnPattern pattern;
    FfnCounts counts;
    ffn_forward(context, layer.x.view(), layer.weights(), form, y.view(), pattern, &counts);
    expect_same_kinds(y, wanted.y);
    EXPECT_EQ(std::isnan(counts.l1), h_nan);
  });
}

template <class T>
void expect_inference_as_dense(const Layer<T>& layer) {
  expect_inference_as_dense(layer, layer.shape.activation);
}
template <class T>
void expect_training_as_dense(const Layer<T>& layer) {
  expect_training_as_dense(layer, layer.shape.activation);
}

template <class T>
class NotFiniteTest : public ::testing::Test {};
using Types = ::testing::Types<bf16, float>;
TYPED_TEST_SUITE(NotFiniteTest, Types);

// One neuron, or few: no sum of infinities of both signs makes the row NaN by chance.
TYPED_TEST(NotFiniteTest, InputsOfFewNeurons) {
  for (const auto& [tokens, neurons] : {std::pair{1, 1}, {1, 3}, {5, 2}, {40, 1}, {70, 20}}) {
    for (const bool gated : {true, false}) {
      for (const float value : {kNan, kInf, -kInf}) {
        for (const ActivationSpec& activation :
             {ActivationSpec{}, ActivationSpec{Activation::relu_squared},
              ActivationSpec{Activation::fat_relu, 0.5F}}) {
          Layer<TypeParam> layer({tokens, 21, neurons, gated, activation, 0.0F}, 7);
          // All of the rows' other inputs pull the same way: every place fires, or none.
          for (std::int64_t n = 0; n < neurons; ++n) {
            layer.gate.set(n, 4, n % 2 == 0 ? 1.0F : -1.0F);
            for (std::int64_t k = 0; k < 21; ++k)
              layer.up.set(n, k, 0.25F), layer.down.set(n, k, 1.0F);
          }
          layer.x.set(tokens / 2, 4, value);
          SCOPED_TRACE(describe(layer.shape) + " x " + std::to_string(value));
          expect_inference_as_dense(layer);
          if (::testing::Test::HasFatalFailure()) return;
          expect_training_as_dense(layer);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(NotFiniteTest, InputsOfManyRows) {
  Layer<TypeParam> layer({300, 33, 130, true, {}, 1.0F});
  layer.x.set(0, 5, kInf);
  layer.x.set(299, 32, kNan);
  layer.x.set(100, 0, -kInf);
  expect_inference_as_dense(layer);
  expect_training_as_dense(layer);
}

// What weights hold is looked at in training, where they change with every step.
TYPED_TEST(NotFiniteTest, WeightsInTraining) {
  for (const std::int64_t tokens : {1, 6, 70}) {
    for (const bool gated : {true, false}) {
      for (const float value : {kNan, kInf, -kInf}) {
        for (const std::int64_t neuron : {0, 7, 82}) {
          SCOPED_TRACE(std::to_string(tokens) + " rows, " + std::to_string(value) + " in neuron " +
                       std::to_string(neuron));
          Layer<TypeParam> one({tokens, 45, 83, gated, {}, 1.0F});
          one.down.set(neuron, 9, value);
          one.down.set(neuron, 44, value);
          expect_training_as_dense(one);
          if (gated) {
            Layer<TypeParam> other({tokens, 45, 83, gated, {}, 1.0F});
            other.up.set(neuron, 44, value);
            expect_training_as_dense(other);
          }
          Layer<TypeParam> gate({tokens, 45, 83, gated, {}, 1.0F});
          gate.gate.set(neuron, 3, value);
          expect_training_as_dense(gate);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Relu makes 0 of an up of −∞, times which an infinite row of x is not NaN; a norm spreads a NaN
// over the row.
TYPED_TEST(NotFiniteTest, FormsOfFewNeurons) {
  const std::vector<float> bias = {0.25F, -0.5F, 0.125F}, weight = {1.0F, -2.0F, 0.5F};
  for (const Activation up : kUpActivations) {
    for (const bool norm : {false, true}) {
      for (const std::int64_t tokens : {1, 40}) {
        for (const float value : {kNan, kInf, -kInf}) {
          FfnForm form;
          form.up = up;
          form.gate_bias = form.up_bias = bias;
          if (norm) {
            form.norm_weight = weight;
            form.norm_epsilon = 1e-5F;
          }
          for (const float sign : {1.0F, -1.0F}) {
            Layer<TypeParam> layer({tokens, 21, 3, true, {}, 0.0F}, 7);
            for (std::int64_t n = 0; n < 3; ++n) {
              layer.gate.set(n, 4, n == 1 ? -1.0F : 1.0F);
              layer.up.set(n, 4, sign);
            }
            SCOPED_TRACE(std::string(name_of(up)) + (norm ? " norm " : " ") +
                         std::to_string(value) + " sign " + std::to_string(sign));
            Layer<TypeParam> of_x = layer, of_up = layer, of_down = layer;
            of_x.x.set(tokens / 2, 4, value);
            expect_inference_as_dense(of_x, form);
            expect_training_as_dense(of_x, form);
            of_up.up.set(1, 3, value);
            expect_training_as_dense(of_up, form);
            of_down.down.set(1, 3, value);
            expect_training_as_dense(of_down, form);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TYPED_TEST(NotFiniteTest, VectorsOfAForm) {
  for (const float value : {kNan, kInf, -kInf}) {
    std::vector<float> up_bias(83, 0.5F), norm_weight(83, 1.0F);
    up_bias[7] = value;
    norm_weight[30] = value;
    const Layer<TypeParam> layer({70, 45, 83, true, {}, 1.0F});
    FfnForm biased;
    biased.up_bias = up_bias;
    expect_training_as_dense(layer, biased);
    FfnForm normed;
    normed.norm_weight = norm_weight;
    normed.norm_epsilon = 1e-5F;
    expect_training_as_dense(layer, normed);
  }
}

}  // namespace
}  // namespace twell
