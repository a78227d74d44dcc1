// Layers with what an FfnForm adds (biases, up's activation, a norm of the hidden state), forward
// and backward, packed and screened, on every tier against the fp64 definition.
#include "tests/ops/train_fixture.h"
#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

// What of a form a layer has.
struct Additions {
  bool biases = false, norm = false, norm_weight = true;
  Activation up = Activation::identity;
};

std::string describe(const Additions& a) {
  return std::string(a.biases ? "biases " : "") + (a.norm ? "norm " : "") +
         (a.norm && a.norm_weight ? "with a weight " : "") + "up " + name_of(a.up);
}

// A layer and the vectors of its form.
template <class T>
class FormedLayer {
 public:
  FormedLayer(const Case& c, const Additions& additions, unsigned seed = 1)
      : layer(c, seed), form(c.activation) {
    form.up = c.gated ? additions.up : Activation::identity;
    const auto random = [&](std::int64_t size, float scale, float shift) {
      const TestMatrix<float> values = random_matrix<float>(1, size, seed++ + 50, scale);
      std::vector<float>& out = vectors_.emplace_back(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; ++i) {
        out[static_cast<std::size_t>(i)] = static_cast<float>(values.value(0, i)) + shift;
      }
      return std::span<float>(out);
    };
    vectors_.reserve(4);
    if (additions.biases) {
      form.gate_bias = random(c.neurons, 0.5F, 0.0F);
      if (c.gated) form.up_bias = random(c.neurons, 0.5F, 0.0F);
      form.down_bias = random(c.depth, 0.5F, 0.0F);
    }
    if (additions.norm) {
      form.norm_epsilon = 1e-5F;
      if (additions.norm_weight) form.norm_weight = random(c.neurons, 0.3F, 1.0F);
    }
  }
  FormedLayer(const FormedLayer&) = delete;

  ref::LayerResult exact() const {
    const ref::Matrix none;
    return ref::ffn({ref::widen(layer.x.view()), ref::widen(layer.gate.view()),
                     layer.shape.gated ? ref::widen(layer.up.view()) : none,
                     ref::widen(layer.down.view()), form});
  }

  Layer<T> layer;
  FfnForm form;

 private:
  std::vector<std::vector<float>> vectors_;
};

// An interval that holds what a computation in f32 may give, and what it stands for.
struct Interval {
  double low = 0.0, high = 0.0;

  static Interval around(double value, double error) { return {value - error, value + error}; }
  double width() const { return high - low; }
  double largest() const { return std::max(std::abs(low), std::abs(high)); }
  // Rounded to T; to f32, as every product is.
  template <class T>
  Interval rounded() const {
    return {low - 1.01 * rounding_bound<T>(low), high + 1.01 * rounding_bound<T>(high)};
  }
  Interval operator*(const Interval& other) const {
    const auto [least, most] =
        std::minmax({low * other.low, low * other.high, high * other.low, high * other.high});
    return Interval{least, most}.rounded<float>();
  }
};

// f of an interval, for a monotonic f.
template <class F>
Interval map(const Interval& of, F f) {
  return Interval{f(of.low), f(of.high)}.rounded<float>();
}

// The definition of a layer, and how far y may be from it. Bounds are those of every step: v and u
// by their sums, the activations at both ends since they are monotonic, h by products, s by the
// ends of Σ h². h of hot neurons may be rounded to T, times w once more.
template <class T>
class Definition {
 public:
  explicit Definition(const FormedLayer<T>& formed)
      : exact(formed.exact()), bound_(exact.y.rows, exact.y.cols) {
    for (std::int64_t r = 0; r < exact.y.rows; ++r) bound_row(formed, r);
  }
  void expect(const TestMatrix<T>& y) const {
    for (std::int64_t r = 0; r < y.rows(); ++r) {
      for (std::int64_t k = 0; k < y.cols(); ++k) {
        ASSERT_NEAR(y.value(r, k), exact.y.at(r, k), bound_.at(r, k)) << r << "," << k;
      }
    }
  }

  ref::LayerResult exact;

 private:
  void bound_row(const FormedLayer<T>& formed, std::int64_t r) {
    const FfnForm& form = formed.form;
    const Layer<T>& layer = formed.layer;
    const Case& c = layer.shape;
    std::vector<double> error(static_cast<std::size_t>(c.neurons)), size(error.size());
    double least = 0.0, most = 0.0;  // Σ h²
    const auto depth = static_cast<double>(c.depth) + 1.0;
    for (std::int64_t n = 0; n < c.neurons; ++n) {
      const auto sum = [&](const ref::Result& of) {
        return Interval::around(of.value.at(r, n),
                                accumulation_bound(depth, of.magnitude.at(r, n)));
      };
      Interval h = map(sum(exact.v), [&](double v) {
                     return ref::activate(v, form.gate);
                   }).template rounded<T>();
      if (c.gated) {
        h = h * map(sum(exact.u), [&](double u) { return up_activated(form.up, u); });
      }
      h = h.template rounded<T>();
      const double at_zero = h.low <= 0.0 && h.high >= 0.0 ? 0.0 : 1.0;
      least += at_zero * std::min(h.low * h.low, h.high * h.high);
      most += h.largest() * h.largest();
      if (scales_hidden(form))
        h = (h * Interval::around(factor_of(form, n), 0.0)).template rounded<T>();
      const double weighted = exact.h.at(r, n) * factor_of(form, n);
      error[static_cast<std::size_t>(n)] = std::max(weighted - h.low, h.high - weighted);
      size[static_cast<std::size_t>(n)] = h.largest();
    }
    const double exact_scale = exact.scale[static_cast<std::size_t>(r)];
    Interval scale = {1.0, 1.0};
    if (form.norm_epsilon) {
      const auto factor = [&](double squares) {
        return 1.0 / std::sqrt(squares / static_cast<double>(c.neurons) + *form.norm_epsilon);
      };
      scale = Interval{factor(most), factor(least)}.rounded<float>();
    }
    const auto terms = static_cast<double>(c.neurons) + 4.0;
    for (std::int64_t k = 0; k < c.depth; ++k) {
      double magnitude = std::abs(bias_of(form.down_bias, k)), propagated = 0.0;
      for (std::int64_t n = 0; n < c.neurons; ++n) {
        const double down = std::abs(layer.down.value(n, k));
        magnitude += size[static_cast<std::size_t>(n)] * down * scale.high;
        propagated += error[static_cast<std::size_t>(n)] * down * scale.high;
      }
      const double expected = exact.y.at(r, k);
      // The rest of the error of s: the sum itself is off by its own.
      const double unscaled =
          std::abs(expected - bias_of(form.down_bias, k)) / exact_scale * scale.width();
      const double bound = accumulation_bound(terms, magnitude) + propagated + unscaled;
      bound_.at(r, k) = bound + 1.01 * rounding_bound<T>(std::abs(expected) + bound);
    }
  }

  ref::Matrix bound_;
};

std::vector<Additions> all_additions() {
  std::vector<Additions> out;
  for (const Activation up : kUpActivations) {
    for (const bool biases : {false, true}) {
      for (const bool norm : {false, true}) out.push_back({biases, norm, true, up});
    }
  }
  out.push_back({false, true, false});
  return out;
}

// As planned, all gathered, all that fires multiplied densely.
template <class F>
void on_every_path(F f) {
  test::on_every_path({{}, 0.0, 2.0}, 2, f);
}

template <class T>
class FormTest : public testing::Test {
 protected:
  static void check(const Case& c, const Additions& additions) {
    SCOPED_TRACE(describe(c) + " " + describe(additions));
    const FormedLayer<T> formed(c, additions);
    const Definition<T> definition(formed);
    on_every_path([&](Context& context) {
      TestMatrix<T> y(c.tokens, c.depth, 1);
      FfnCounts packed, screened;
      ffn(context, formed.layer.x.view(), formed.layer.weights(), formed.form, y.view(), &packed);
      definition.expect(y);
      ffn(context, formed.layer.x.view(), formed.layer.screened(), formed.form, y.view(),
          &screened);
      definition.expect(y);
      EXPECT_GE(screened.candidates, screened.nnz());
    });
  }
};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(FormTest, Types);

TYPED_TEST(FormTest, EveryAddition) {
  for (const Additions& additions : all_additions()) {
    for (const std::int64_t tokens : {1, 5, 40}) {
      this->check({tokens, 45, 83, true, {}, 0.7F}, additions);
      if (testing::Test::HasFatalFailure()) return;
      this->check({tokens, 45, 83, false, {Activation::relu_squared}, 0.7F}, additions);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(FormTest, EveryActivationOfTheGate) {
  for (const Activation kind : kActivations) {
    this->check({37, 96, 300, true, {kind, 0.25F}, 1.0F}, {true, true, true, Activation::relu});
  }
}

// Up and down of many rows are gathered in pieces of columns, on tiers that do.
TYPED_TEST(FormTest, ManyRows) {
  this->check({515, 38, 130, true, {}, 1.5F}, {true, true, true, Activation::relu});
  this->check({515, 38, 130, false, {}, 1.5F}, {true, true});
}

// A bias alone decides what fires: weights are zero, biases of either sign, on the edge too.
TYPED_TEST(FormTest, BiasWithoutWeight) {
  for (const std::int64_t tokens : {1, 40}) {
    FormedLayer<TypeParam> formed({tokens, 33, 50, true, {Activation::fat_relu, 0.25F}},
                                  {true, false});
    std::vector<float> bias(50);
    for (std::int64_t n = 0; n < 50; ++n) {
      for (std::int64_t k = 0; k < 33; ++k) formed.layer.gate.set(n, k, 0.0F);
      bias[static_cast<std::size_t>(n)] = n % 3 == 0 ? 0.25F : n % 3 == 1 ? 0.2578125F : -1e30F;
    }
    formed.form.gate_bias = bias;
    const Definition<TypeParam> definition(formed);
    on_every_path([&](Context& context) {
      TestMatrix<TypeParam> y(tokens, 33);
      FfnCounts counts;
      for (const bool screened : {false, true}) {
        ffn(context, formed.layer.x.view(),
            screened ? formed.layer.screened() : formed.layer.weights(), formed.form, y.view(),
            &counts);
        EXPECT_EQ(counts.nnz(), tokens * 17);  // those of n % 3 == 1
        definition.expect(y);
      }
    });
  }
}

// The gradients of a pass and of its form's vectors, matrices of one row.
template <class T>
struct FormPass : Pass<T> {
  explicit FormPass(const FormedLayer<T>& formed) : Pass<T>(formed.layer), formed_(formed) {
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) vectors[i] = like(formed.form[i]);
  }

  FfnGradients gradients(bool accumulate = false) {
    FfnGradients out = Pass<T>::gradients(formed_.layer.shape.gated, accumulate);
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) out.vectors[i] = span_of(vectors[i]);
    return out;
  }
  FfnBackward input(float l1) const {
    FfnBackward in = Pass<T>::input(formed_.layer, l1);
    in.form = formed_.form;
    return in;
  }

 private:
  static TestMatrix<float> like(std::span<const float> vector) {
    return TestMatrix<float>(vector.empty() ? 0 : 1, std::ssize(vector));
  }
  static std::span<float> span_of(TestMatrix<float>& vector) {
    if (vector.rows() == 0) return {};
    return {&vector.at(0, 0), static_cast<std::size_t>(vector.cols())};
  }
  const FormedLayer<T>& formed_;

 public:
  FormVectors<TestMatrix<float>> vectors;
};

// v and u of the pattern against their definition, and that it has what fires and nothing else.
template <class T>
void expect_places(const FormedLayer<T>& formed, const ref::LayerResult& exact,
                   const ref::BackwardInput& in) {
  const FfnForm& form = formed.form;
  const double above = form.gate.kept_above();
  const bool gated = formed.layer.shape.gated;
  const auto terms = static_cast<double>(in.x.cols) + 1.0;
  for (std::int64_t r = 0; r < in.x.rows; ++r) {
    for (std::int64_t n = 0; n < in.gate.rows; ++n) {
      const double v = exact.v.value.at(r, n);
      const double v_error = accumulation_bound(terms, exact.v.magnitude.at(r, n));
      const double u = gated ? exact.u.value.at(r, n) : 1.0;
      const double u_error = gated ? accumulation_bound(terms, exact.u.magnitude.at(r, n)) : 0.0;
      const bool up_acts = gated && form.up != Activation::identity;
      if (in.fired.at(r, n) == 0.0) {
        ASSERT_TRUE(v <= above + v_error || (up_acts && u <= u_error)) << r << "," << n;
        continue;
      }
      ASSERT_TRUE(v > above - v_error && (!up_acts || u > -u_error)) << r << "," << n;
      ASSERT_NEAR(in.v.at(r, n), v, v_error + 1.01 * rounding_bound<T>(std::abs(v) + v_error));
      if (!gated) continue;
      ASSERT_NEAR(in.u.at(r, n), u, u_error + 1.01 * rounding_bound<T>(std::abs(u) + u_error));
    }
  }
}

template <class T>
void check_training(Context& context, const FormedLayer<T>& formed, const Definition<T>& definition,
                    float l1) {
  const Layer<T>& layer = formed.layer;
  const Case& c = layer.shape;
  FormPass<T> pass(formed);
  ffn_forward(context, layer.x.view(), layer.weights(), formed.form, pass.y.view(), pass.pattern,
              &pass.counts);
  definition.expect(pass.y);
  ref::BackwardInput in = widened(layer, pass.pattern.view());
  in.form = formed.form;
  expect_places(formed, definition.exact, in);
  ffn_backward(context, pass.input(l1), pass.gradients());
  in.dy = ref::widen(std::as_const(pass.dy).view());
  in.l1 = l1;
  const ref::Gradients exact = ref::ffn_backward(in);
  const auto depth = static_cast<double>(c.depth);
  const auto tokens = static_cast<double>(c.tokens);
  const auto hidden = static_cast<double>(c.neurons);
  // As without a form; with a norm, each coefficient has three factors and a sum over H more.
  const double norm = scales_hidden(formed.form) ? hidden + 12 : 0.0;
  expect_gradient<T>("dx", pass.dx, exact.dx, depth + 2 * hidden + 6 + norm, true);
  expect_gradient<T>("gate", pass.gate, exact.gate, depth + tokens + 6 + norm, true);
  if (c.gated) expect_gradient<T>("up", pass.up, exact.up, depth + tokens + 6 + norm, true);
  expect_gradient<T>("down", pass.down, exact.down, tokens + 6 + norm, true);
  const double all = depth + tokens + 6 + norm;
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    const bool sums_dy = kFormVectors[i].of_columns;
    expect_gradient<T>(kFormVectors[i].name, pass.vectors[i], exact.vectors[i],
                       sums_dy ? tokens : all, !sums_dy);
  }

  // Twice as much where it adds.
  const FormVectors<TestMatrix<float>> before = pass.vectors;
  ffn_backward(context, pass.input(l1), pass.gradients(true));
  const auto twice = [](const auto& now, const auto& then) {
    for (std::int64_t i = 0; then.rows() > 0 && i < then.cols(); ++i) {
      ASSERT_NEAR(now.value(0, i), 2 * then.value(0, i),
                  std::ldexp(std::abs(then.value(0, i)), -22));
    }
  };
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) twice(pass.vectors[i], before[i]);
}

TYPED_TEST(FormTest, Training) {
  for (const Additions& additions : all_additions()) {
    for (const bool gated : {true, false}) {
      for (const std::int64_t tokens : {1, 70}) {
        const Case c = {tokens, 45, 83, gated, {}, 0.5F};
        SCOPED_TRACE(describe(c) + " " + describe(additions));
        const FormedLayer<TypeParam> formed(c, additions);
        const Definition<TypeParam> definition(formed);
        on_every_path(
            [&](Context& context) { check_training(context, formed, definition, 0.25F); });
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(FormTest, TrainingOfEveryActivation) {
  for (const Activation kind : kActivations) {
    const FormedLayer<TypeParam> formed({65, 40, 70, true, {kind, 0.25F}, 0.5F},
                                        {true, true, true, Activation::relu_squared});
    const Definition<TypeParam> definition(formed);
    on_every_path([&](Context& context) { check_training(context, formed, definition, 0.0F); });
  }
}

TEST(FormErrors, NameTheArgument) {
  Context context({.threads = 1, .tier = {}});
  const Layer<bf16> layer({4, 32, 64});
  TestMatrix<bf16> y(4, 32);
  const auto run = [&](const FfnForm& form, bool gated = true) {
    OwnedWeights weights = layer.weights();
    if (!gated) weights.up.reset();
    return message_of([&] { ffn(context, layer.x.view(), weights, form, y.view()); });
  };
  const std::vector<float> vector(63, 1.0F);
  FfnForm form;
  EXPECT_EQ(run(form), "");
  form.gate_bias = vector;
  EXPECT_EQ(run(form), "twell::ffn: form.gate_bias: expected 64 entries, got 63");
  form = {};
  form.up_bias = vector;
  EXPECT_EQ(run(form), "twell::ffn: form.up_bias: expected 64 entries, got 63");
  form = {};
  form.down_bias = vector;
  EXPECT_EQ(run(form), "twell::ffn: form.down_bias: expected 32 entries, got 63");
  form = {};
  form.norm_weight = vector;
  EXPECT_EQ(run(form), "twell::ffn: form.norm_weight: expected norm_epsilon with it, got none");
  form.norm_epsilon = 1e-6F;
  EXPECT_EQ(run(form), "twell::ffn: form.norm_weight: expected 64 entries, got 63");
  form.norm_epsilon = 0.0F;
  EXPECT_EQ(run(form), "twell::ffn: form.norm_epsilon: expected more than 0, got 0");
  form = {};
  form.up = Activation::fat_relu;
  EXPECT_EQ(run(form),
            "twell::ffn: form.up: expected an activation without a threshold, got fat_relu");
  form.up = Activation::relu;
  EXPECT_EQ(run(form, false),
            "twell::ffn: form.up: expected no activation of up, in a layer without a gate");
  form = {};
  form.up_bias = std::span(vector).first(1);
  EXPECT_EQ(run(form, false), "twell::ffn: form.up_bias: expected none, in a layer without a gate");
  form = ActivationSpec{Activation::identity};
  EXPECT_EQ(run(form), "twell::ffn: activation: expected one that yields zeros, got identity");
}

}  // namespace
}  // namespace twell
