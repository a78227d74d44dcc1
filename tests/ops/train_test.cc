// Forward and backward passes of training against the fp64 definition, on every tier.
#include "tests/ops/train_fixture.h"
#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class T>
void expect_pattern(const Layer<T>& layer, const ref::BackwardInput& in) {
  const float above = layer.shape.activation.kept_above();
  const ActivationSpec none = {Activation::relu, 0.0F};
  const ref::Result v = ref::gemm_relu_twell(in.x, in.gate, none);
  for (std::int64_t r = 0; r < in.x.rows; ++r) {
    for (std::int64_t n = 0; n < in.gate.rows; ++n) {
      double exact = 0.0, u = 0.0, magnitude = 0.0;
      for (std::int64_t k = 0; k < in.x.cols; ++k) {
        exact += in.x.at(r, k) * in.gate.at(n, k);
        u += in.x.at(r, k) * in.up.at(n, k);
        magnitude += std::abs(in.x.at(r, k) * in.up.at(n, k));
      }
      const auto terms = static_cast<double>(in.x.cols);
      const double bound = accumulation_bound(terms, v.magnitude.at(r, n));
      if (!std::isfinite(exact)) {
        ASSERT_EQ(in.fired.at(r, n) != 0.0, !(exact <= above)) << r << "," << n;
        continue;
      }
      if (in.fired.at(r, n) == 0.0) {
        ASSERT_LE(exact, above + bound) << r << "," << n;
        continue;
      }
      ASSERT_GT(exact, above - bound) << r << "," << n;
      ASSERT_NEAR(in.v.at(r, n), exact, bound + 1.01 * rounding_bound<T>(exact) + bound / 100);
      if (!layer.shape.gated || !std::isfinite(u)) continue;
      const double u_bound = accumulation_bound(terms, magnitude);
      ASSERT_NEAR(in.u.at(r, n), u, u_bound + 1.01 * rounding_bound<T>(std::abs(u) + u_bound));
    }
  }
}

template <class T, class G = float>
void check_training(Context& context, const Layer<T>& layer, float l1 = 0.0F) {
  const Case& c = layer.shape;
  SCOPED_TRACE(describe(c) + " on " + name_of(context.tier()) + ", threads " +
               std::to_string(context.threads()) + ", hot share " +
               std::to_string(context.hot_share().value_or(-1)) + ", l1 " + std::to_string(l1));
  Pass<T, G> pass(layer);
  const FfnWeights weights = layer.weights();
  ffn_forward(context, layer.x.view(), weights, c.activation, pass.y.view(), pass.pattern,
              &pass.counts);
  ref::BackwardInput in = widened(layer, pass.pattern.view());
  expect_pattern(layer, in);
  // y is that of ffn(), except that g of relu_squared is not rounded before it is multiplied, and
  // that few rows are not split among threads.
  const bool same_sums =
      c.activation.kind != Activation::relu_squared &&
      plan_ffn(context, c.tokens, weights.shape(dtype_of<T>::value), weights.form()).row_parts == 1;
  TestMatrix<T> y(c.tokens, c.depth);
  FfnCounts counts;
  ffn(context, layer.x.view(), weights, c.activation, y.view(), &counts);
  EXPECT_EQ(counts.row_nnz, pass.counts.row_nnz);
  EXPECT_EQ(counts.neuron_nnz, pass.counts.neuron_nnz);
  double l1_sum = 0.0;
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    for (std::int64_t k = 0; same_sums && k < c.depth; ++k) {
      ASSERT_TRUE(same(y.value(r, k), pass.y.value(r, k))) << r << "," << k;
    }
    for (std::int64_t n = 0; n < c.neurons; ++n) {
      if (in.fired.at(r, n) == 0.0) continue;
      l1_sum +=
          std::abs(activated(in.form.gate.kind, in.v.at(r, n)) * (c.gated ? in.u.at(r, n) : 1.0));
    }
  }
  if (std::isfinite(l1_sum)) {
    // Eight f32 sums side by side; and h is made of the u that is not rounded yet.
    const double sum = (static_cast<double>(c.neurons) / 8 + 12) * std::ldexp(1.0, -24);
    const double rounded = c.gated ? 1.01 * rounding_bound<T>(1.0) : 0.0;
    EXPECT_NEAR(pass.counts.l1, l1_sum, (sum + rounded) * l1_sum);
  }

  ffn_backward(context, pass.input(layer, l1), pass.gradients(c.gated));
  in.dy = ref::widen(std::as_const(pass.dy).view());
  in.l1 = l1;
  const ref::Gradients exact = ref::ffn_backward(in);
  const auto depth = static_cast<double>(c.depth);
  const auto tokens = static_cast<double>(c.tokens);
  const auto neurons = static_cast<double>(c.neurons);
  // Each coefficient is a product of four factors, and the sum over dy is of D + 1 terms.
  expect_gradient<T>("dx", pass.dx, exact.dx, depth + 2 * neurons + 6, true);
  expect_gradient<T>("gate", pass.gate, exact.gate, depth + tokens + 6, true);
  if (c.gated) expect_gradient<T>("up", pass.up, exact.up, depth + tokens + 6, true);
  expect_gradient<T>("down", pass.down, exact.down, tokens + 6, true);

  // The same bits again; and twice as much where it adds.
  Pass<T, G> again(layer);
  ffn_backward(context, pass.input(layer, l1), again.gradients(c.gated));
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    ASSERT_EQ(std::memcmp(&again.dx.at(r, 0), &pass.dx.at(r, 0),
                          static_cast<std::size_t>(c.depth) * sizeof(T)),
              0);
  }
  if constexpr (dtype_of<G>::value == DType::f32) {
    ffn_backward(context, pass.input(layer, l1), again.gradients(c.gated, true));
  }
  const float times = dtype_of<G>::value == DType::f32 ? 2.0F : 1.0F;
  for (std::int64_t n = 0; n < c.neurons; ++n) {
    for (std::int64_t k = 0; k < c.depth; ++k) {
      if (!std::isfinite(pass.gate.value(n, k)) || !std::isfinite(pass.down.value(n, k))) continue;
      ASSERT_EQ(again.gate.value(n, k), times * pass.gate.value(n, k)) << n << "," << k;
      ASSERT_EQ(again.down.value(n, k), times * pass.down.value(n, k)) << n << "," << k;
      if (c.gated && std::isfinite(pass.up.value(n, k))) {
        ASSERT_EQ(again.up.value(n, k), times * pass.up.value(n, k)) << n << "," << k;
      }
    }
  }
}

template <class T>
class TrainTest : public testing::Test {
 protected:
  // Every tier, gathering and dense products forced and as planned.
  template <class F>
  static void on_every_path(int threads, F f) {
    test::on_every_path({{}, 0.0, 1.0, 2.0}, threads, f);
  }
};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(TrainTest, Types);

TYPED_TEST(TrainTest, EveryDensityGatedAndNot) {
  this->on_every_path(2, [](Context& context) {
    for (const float shift : {20.0F, 2.5F, 1.5F, 0.0F, -8.0F}) {
      for (const bool gated : {true, false}) {
        check_training(context, Layer<TypeParam>({37, 48, 130, gated, {}, shift}));
      }
    }
  });
}

TYPED_TEST(TrainTest, EveryActivationAndL1) {
  this->on_every_path(2, [](Context& context) {
    for (const Activation kind : kActivations) {
      for (const bool gated : {true, false}) {
        check_training(context, Layer<TypeParam>({65, 40, 70, gated, {kind, 0.25F}, 1.0F}), 0.5F);
      }
    }
  });
}

TYPED_TEST(TrainTest, TailSizes) {
  this->on_every_path(3, [](Context& context) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 16, 63}) {
      check_training(context, Layer<TypeParam>({tokens, 33, 50}));
    }
    for (const std::int64_t depth : {1, 17, 257}) {
      check_training(context, Layer<TypeParam>({19, depth, 33, true, {}, 0.0F}), 0.01F);
    }
    for (const std::int64_t neurons : {1, 17, 257}) {
      check_training(context, Layer<TypeParam>({19, 20, neurons, true, {}, -1.0F}));
    }
  });
}

TYPED_TEST(TrainTest, MoreRowsThanABlock) {
  for (const int threads : {1, 2, 3, 7, 16}) {
    Context context({.threads = threads, .tier = {}});
    for (const float shift : {2.0F, -1.0F}) {
      check_training(context, Layer<TypeParam>({1025, 24, 40, true, {}, shift}));
    }
  }
}

TYPED_TEST(TrainTest, LongRowsAndManyNeurons) {
  for (const std::optional<double> share : {std::optional<double>(0.0), {}, {2.0}}) {
    Context context({.threads = 2, .tier = {}, .hot_share = share});
    check_training(context, Layer<TypeParam>({9, 5633, 17, true, {}, 0.0F}));
    check_training(context, Layer<TypeParam>({9, 17, 5633, true, {}, 0.0F}), 0.01F);
    check_training(context, Layer<TypeParam>({1025, 17, 257, false, {}, 1.0F}));
  }
}

// dy · down beyond the range of f32, all of it finite: only rows that fired the neuron meet it.
TYPED_TEST(TrainTest, InfiniteProductWhereNothingFired) {
  this->on_every_path(2, [](Context& context) {
    Layer<TypeParam> layer({70, 40, 64, true, {}, 0.0F});
    for (std::int64_t k = 0; k < 40; ++k) layer.down.set(5, k, 1e30F);
    Pass<TypeParam> pass(layer);
    for (std::int64_t r = 0; r < 70; ++r) pass.dy.set(r, 7, 1e30F);
    ffn_forward(context, layer.x.view(), layer.weights(), {}, pass.y.view(), pass.pattern);
    ffn_backward(context, pass.input(layer, 0.0F), pass.gradients(true));
    const FfnPatternView pattern = pass.pattern.view();
    std::int64_t met = 0;
    for (std::int64_t r = 0; r < 70; ++r) {
      const bool fired = std::binary_search(pattern.neurons + pattern.offsets[r],
                                            pattern.neurons + pattern.offsets[r + 1], 5);
      met += fired;
      for (std::int64_t k = 0; !fired && k < 40; ++k) {
        ASSERT_FALSE(std::isnan(pass.dx.value(r, k))) << r << "," << k;
      }
    }
    EXPECT_GT(met, 0);
    EXPECT_LT(met, 70);
  });
}

TYPED_TEST(TrainTest, GradientsInTheLayersDtype) {
  this->on_every_path(2, [](Context& context) {
    check_training<TypeParam, TypeParam>(context, Layer<TypeParam>({70, 40, 60}), 0.1F);
  });
}

// A place that did not fire contributes nothing, whatever it meets; one that did propagates.
TYPED_TEST(TrainTest, NanAndInfinityWhereTheGateFired) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  this->on_every_path(2, [](Context& context) {
    for (const bool gated : {true, false}) {
      Layer<TypeParam> layer({40, 45, 83, gated, {}, 0.0F});
      layer.up.set(3, 2, kInf);
      layer.gate.set(4, 3, std::numeric_limits<float>::quiet_NaN());
      layer.down.set(5, 6, kInf);
      layer.x.set(7, 8, kInf);
      layer.x.set(9, 1, std::numeric_limits<float>::quiet_NaN());
      check_training(context, layer);
    }
  });
}

// As many neurons as fire in a trained model: few, and some far more often than others.
TYPED_TEST(TrainTest, HotNeuronsAmongColdOnes) {
  this->on_every_path(2, [](Context& context) {
    for (const bool gated : {true, false}) {
      Layer<TypeParam> layer({300, 70, 290, gated, {}, 2.5F});
      for (std::int64_t n = 0; n < 290; n += 3) layer.gate.set(n, 0, n % 2 == 0 ? 8.0F : 0.0F);
      check_training(context, layer, 0.25F);
    }
  });
}

TYPED_TEST(TrainTest, ScreenedForward) {
  for (CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const Layer<TypeParam> layer({90, 64, 200, true, {}, 2.0F});
    Pass<TypeParam> packed(layer), screened(layer);
    ffn_forward(context, layer.x.view(), layer.screened(), {}, screened.y.view(), screened.pattern,
                &screened.counts);
    expect_pattern(layer, widened(layer, screened.pattern.view()));
    EXPECT_GE(screened.counts.candidates, screened.counts.nnz());
  }
}

// In memory that was there before: the same lists, and none beyond them is touched.
TYPED_TEST(TrainTest, PatternInMemoryOfTheCaller) {
  Context context({.threads = 2, .tier = {}});
  const Layer<TypeParam> layer({70, 40, 60});
  Pass<TypeParam> pass(layer);
  ffn_forward(context, layer.x.view(), layer.weights(), {}, pass.y.view(), pass.pattern);
  const FfnPatternView own = pass.pattern.view();
  std::vector<std::int64_t> offsets(71);
  std::vector<std::int32_t> neurons(70 * 60, -7);
  std::vector<TypeParam> v(70 * 60), u(70 * 60);
  FfnPattern borrowed({70, 60, own.dtype, offsets.data(), neurons.data(), v.data(), u.data()});
  ffn_forward(context, layer.x.view(), layer.weights(), {}, pass.y.view(), borrowed);
  EXPECT_TRUE(std::equal(offsets.begin(), offsets.end(), own.offsets));
  EXPECT_TRUE(std::equal(neurons.begin(), neurons.begin() + own.nnz(), own.neurons));
  EXPECT_EQ(neurons[static_cast<std::size_t>(own.nnz())], -7);
  const auto bytes = static_cast<std::size_t>(own.nnz()) * sizeof(TypeParam);
  EXPECT_EQ(std::memcmp(v.data(), own.v, bytes), 0);
  EXPECT_EQ(std::memcmp(u.data(), own.u, bytes), 0);
}

TEST(TrainErrors, NameOperationAndArgument) {
  Context context({.threads = 1, .tier = {}});
  const Layer<bf16> layer({4, 32, 64});
  Pass<bf16> pass(layer);
  ffn_forward(context, layer.x.view(), layer.weights(), {}, pass.y.view(), pass.pattern);
  const auto run = [&](const FfnBackward& in, const FfnGradients& out) {
    return message_of([&] { ffn_backward(context, in, out); });
  };
  FfnBackward in = pass.input(layer, 0.0F);
  FfnGradients out = pass.gradients(true);
  EXPECT_EQ(run(in, out), "");
  in.l1 = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(run(in, out), "twell::ffn_backward: l1: expected a finite gradient, got nan");
  in = pass.input(layer, 0.0F);
  in.dy.cols = 31;
  EXPECT_EQ(run(in, out), "twell::ffn_backward: dy: expected bf16 [4, 32], got bf16 [4, 31]");
  in = pass.input(layer, 0.0F);
  in.pattern.cols = 63;
  EXPECT_EQ(run(in, out),
            "twell::ffn_backward: pattern: expected one of bf16 [4, 64], got bf16 [4, 63]");
  in = pass.input(layer, 0.0F);
  in.up.reset();
  EXPECT_NE(run(in, out).find("pattern: u is there"), std::string::npos);
  in = pass.input(layer, 0.0F);
  out.up.reset();
  EXPECT_NE(run(in, out).find("gradient of up: expected one"), std::string::npos);
  Pass<bf16, bf16> narrow(layer);
  out = narrow.gradients(true, true);
  EXPECT_NE(run(in, out).find("gradient of gate: expected f32, to add to, got bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace twell
