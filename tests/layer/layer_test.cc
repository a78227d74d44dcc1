// twell::Layer against ffn(), which it is made of: what it decides, and that no decision changes a
// result.
#include "twell/layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell {
namespace {

using test::message_of;
using test::random_matrix;
using test::same;
using test::TestMatrix;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 72, kNeurons = 200;

// A layer as a checkpoint has it. `bias` moves all pre-activations: far below 0 nothing fires.
template <class T>
struct Stored {
  explicit Stored(bool gated_ = true, float bias = -2.0F)
      : gated(gated_), gate_bias(static_cast<std::size_t>(kNeurons), bias) {
    for (std::int64_t d = 0; d < kWidth; ++d) {
      for (std::int64_t n = 0; n < kNeurons; ++n) neuron_major.set(n, d, down.value(d, n));
    }
    form.gate_bias = gate_bias;
  }
  StoredWeights weights(bool major = false) const {
    StoredWeights out{gate.view(), {}, major ? neuron_major.view() : down.view(), major};
    if (gated) out.up = up.view();
    return out;
  }
  // By ffn() on the packed gate.
  TestMatrix<T> expected(Context& context, const TestMatrix<T>& x,
                         FfnCounts* counts = nullptr) const {
    const PackedWeight packed(gate.view());
    FfnWeights w{packed.view(), {}, neuron_major.view()};
    if (gated) w.up = up.view();
    TestMatrix<T> y(x.rows(), kWidth);
    ffn(context, x.view(), w, form, y.view(), counts);
    return y;
  }
  // Σ |h| |Wd| + |bd| of each element of y, with all pre-activations as large as they could be.
  std::vector<double> magnitudes(const TestMatrix<T>& x) const {
    std::vector<double> out;
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      std::vector<double> sums(static_cast<std::size_t>(kWidth), 1.0);
      for (std::int64_t n = 0; n < kNeurons; ++n) {
        double v = 0.5, u = 0.5;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          v += std::abs(x.value(r, i) * gate.value(n, i));
          u += std::abs(x.value(r, i) * up.value(n, i));
        }
        if (form.gate.kind == Activation::relu_squared) v *= v;
        for (std::int64_t c = 0; c < kWidth; ++c) {
          sums[static_cast<std::size_t>(c)] += v * (gated ? u : 1.0) * std::abs(down.value(c, n));
        }
      }
      out.insert(out.end(), sums.begin(), sums.end());
    }
    return out;
  }

  bool gated;
  TestMatrix<T> gate = random_matrix<T>(kNeurons, kWidth, 1, 0.1F, 3);
  TestMatrix<T> up = random_matrix<T>(kNeurons, kWidth, 2, 0.1F, 5);
  TestMatrix<T> down = random_matrix<T>(kWidth, kNeurons, 3, 0.1F, 1);
  TestMatrix<T> neuron_major{kNeurons, kWidth, 2};
  std::vector<float> gate_bias;
  FfnForm form{ActivationSpec{Activation::relu, 0.0F}};
};

template <class T>
TestMatrix<T> run(Layer& layer, Context& context, const TestMatrix<T>& x) {
  TestMatrix<T> y(x.rows(), kWidth);
  layer.run(context, x.view(), y.view());
  return y;
}

// None until it is prepared.
std::optional<GateForm> form_of(const Layer& layer) {
  const std::optional<LayerBlock> block = layer.block();
  return block ? std::optional(block->gate_form()) : std::nullopt;
}

template <class T>
class LayerTest : public testing::Test {};
using Types = testing::Types<float, bf16>;
TYPED_TEST_SUITE(LayerTest, Types);

// Where weights lie, and whether their rows are spread, changes no bit of a packed layer.
TYPED_TEST(LayerTest, IsFfnWhereverWeightsLie) {
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const bool gated : {true, false}) {
      const Stored<TypeParam> stored(gated, 0.0F);
      for (const bool major : {true, false}) {
        for (const bool spread : {true, false}) {
          Layer layer(context, stored.weights(major), stored.form,
                      {.block = {.spread = spread}, .path = LayerPath::sparse});
          for (const std::int64_t rows : {1, 70}) {
            const auto x = random_matrix<TypeParam>(rows, kWidth, 7);
            EXPECT_TRUE(same(run(layer, context, x), stored.expected(context, x)))
                << name_of(tier) << gated << major << spread << rows;
          }
          EXPECT_EQ(form_of(layer), GateForm::packed);  // by one row
          EXPECT_FALSE(layer.reads_gate());
          const bool in_place = major && !spread;
          EXPECT_EQ(layer.down().data == stored.neuron_major.view().data, in_place);
          const auto packed = static_cast<std::int64_t>(
              packed_bytes(weight_type(layer.shape().dtype), kNeurons, kWidth));
          const std::int64_t stride = spread ? spread_stride(kWidth, sizeof(TypeParam)) : kWidth;
          const std::int64_t copies = (in_place ? 0 : 1) + (gated && spread ? 1 : 0);
          const std::int64_t vectors = kNeurons * std::int64_t{sizeof(float)};
          EXPECT_EQ(
              layer.own_bytes(),
              packed + vectors + copies * kNeurons * stride * std::int64_t{sizeof(TypeParam)});
        }
      }
    }
  }
}

// Inputs decide the form once, and what was found of them decides the same.
TYPED_TEST(LayerTest, FirstInputsOrTheirFindingsChooseTheFormOfTheGate) {
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const auto x = random_matrix<TypeParam>(64, kWidth, 9);
    for (const float bias : {-100.0F, 0.0F}) {  // nothing fires; half does
      const Stored<TypeParam> stored(true, bias);
      const bool screens = tuning_of(tier).screen_limit > 0.0 && bias < 0.0F;
      const GateForm form = screens ? GateForm::screened : GateForm::packed;
      Layer by_inputs(context, stored.weights(), stored.form, {.path = LayerPath::sparse});
      const auto y = run(by_inputs, context, x);
      EXPECT_EQ(form_of(by_inputs), form) << name_of(tier);
      EXPECT_EQ(by_inputs.reads_gate(), screens);

      Layer by_findings(context, stored.weights(), stored.form, {.path = LayerPath::sparse});
      const LayerFindings findings =
          Layer(context, stored.weights(), stored.form).examine(context, x.view());
      EXPECT_EQ(findings.inputs, 64);
      EXPECT_NEAR(findings.density(), bias < 0.0F ? 0.0 : 0.5, 0.1);
      by_findings.prepare(findings);
      EXPECT_EQ(form_of(by_findings), form);
      EXPECT_TRUE(same(run(by_findings, context, x), y));

      // What comes later changes nothing.
      by_inputs.prepare(context, random_matrix<TypeParam>(40, kWidth, 10).view());
      EXPECT_EQ(form_of(by_inputs), form);
      EXPECT_TRUE(same(run(by_inputs, context, x), y));
    }
    // Without candidates, or with too few inputs, it is packed.
    const Stored<TypeParam> silent(true, -100.0F);
    Layer unknown(context, silent.weights(), silent.form);
    LayerFindings findings = unknown.examine(context, x.view(), false);
    EXPECT_FALSE(findings.candidates.has_value());
    unknown.prepare(findings);
    EXPECT_EQ(form_of(unknown), GateForm::packed);
    Layer few(context, silent.weights(), silent.form);
    few.prepare(context, random_matrix<TypeParam>(kFewestInputs - 1, kWidth, 11).view());
    EXPECT_EQ(form_of(few), GateForm::packed);
    EXPECT_FALSE(few.block()->findings() != nullptr);
  }
}

TYPED_TEST(LayerTest, FindingsCountWhatFired) {
  Context context({.threads = 2, .tier = {}});
  const Stored<TypeParam> stored(true, 0.0F);
  const auto x = random_matrix<TypeParam>(50, kWidth, 12);
  const LayerFindings findings =
      Layer(context, stored.weights(), stored.form).examine(context, x.view());
  FfnCounts counts;
  TestMatrix<TypeParam> y(50, kWidth);
  const PackedWeight packed(stored.gate.view());
  ffn(context, x.view(), {packed.view(), stored.up.view(), stored.neuron_major.view()}, stored.form,
      y.view(), &counts);
  EXPECT_EQ(findings.fired, counts.neuron_nnz);
  for (std::int64_t c = 0; c < kWidth; ++c) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < 50; ++r) sum += x.value(r, c);
    EXPECT_FLOAT_EQ(findings.mean[static_cast<std::size_t>(c)], static_cast<float>(sum / 50));
  }
  // What fires is a candidate.
  EXPECT_GE(*findings.candidates, findings.density());
  EXPECT_LE(*findings.candidates, 1.0);
}

// A machine on which both ways cost the same at a density of a quarter.
CostModel quarter() { return {"here", true, {1}, {0.0, 1.0}, {1.1}, {{1e-9, 4.0}}}; }

class LayerPaths : public testing::TestWithParam<CpuTier> {};
INSTANTIATE_TEST_SUITE_P(Tiers, LayerPaths, testing::ValuesIn(available_cpu_tiers()),
                         [](const auto& tier) { return name_of(tier.param); });

TEST_P(LayerPaths, DenseWhereItIsExpectedToBeFaster) {
  Context context({.threads = 2, .tier = GetParam()});
  const auto x = random_matrix<float>(64, kWidth, 9);
  for (const float bias : {-100.0F, 0.0F}) {
    const Stored<float> stored(true, bias);
    int made = 0, called = 0;
    LayerOptions options{.make_dense = [&]() -> DenseFfn {
      ++made;
      return [&](Context&, ConstMatrixView, MatrixView y, FfnCounts* counts) {
        ++called;
        for (std::int64_t r = 0; r < y.rows; ++r) *y.row<float>(r) = 42.0F;
        if (counts != nullptr) *counts = {};  // the activity ceases
      };
    }};
    options.cost = quarter();
    Layer layer(context, stored.weights(), stored.form, options);
    // The density of the sample is known to its own call.
    const auto y = run(layer, context, x);
    EXPECT_EQ(called, bias < 0.0F ? 0 : 1);
    EXPECT_EQ(y.value(0, 0) == 42.0F, bias == 0.0F);
    for (int call = 0; call < 20; ++call) run(layer, context, x);
    EXPECT_LE(called, 17) << "densities are sampled";
    EXPECT_LE(made, 1);
    EXPECT_THAT(layer.describe(context, 8), HasSubstr("measured on here"));
  }
}

// One layer of several threads, which the first call of them prepares, whichever that is.
TEST_P(LayerPaths, ThreadsShareALayer) {
  const Stored<float> stored(true, 0.0F);
  const auto x = random_matrix<float>(48, kWidth, 9);
  Context alone({.threads = 2, .tier = GetParam()});
  Layer reference(alone, stored.weights(), stored.form, {.path = LayerPath::sparse});
  const auto y = run(reference, alone, x);
  std::atomic<int> made = 0, called = 0;
  LayerOptions options{.make_dense = [&]() -> DenseFfn {
    ++made;
    return [&](Context&, ConstMatrixView, MatrixView out, FfnCounts* counts) {
      ++called;
      for (std::int64_t r = 0; r < out.rows; ++r) *out.row<float>(r) = 42.0F;
      if (counts != nullptr) counts->row_nnz.assign(48, kNeurons / 4 - 4);  // sparse again
    };
  }};
  options.cost = quarter();
  Layer layer(alone, stored.weights(), stored.form, options);
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      Context own({.threads = 2, .tier = GetParam()});
      for (int call = 0; call < 40; ++call) {
        TestMatrix<float> z(48, kWidth);
        const LayerPath path = layer.run(own, x.view(), z.view());
        right += path == LayerPath::dense ? z.value(0, 0) == 42.0F : same(z, y);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 120);
  EXPECT_EQ(made, 1);
  EXPECT_GT(called, 0);
  EXPECT_LT(called, 120);
}

TEST_P(LayerPaths, WithoutACostTheFirstInputsTimeTheLayer) {
  Context context({.threads = 2, .tier = GetParam()});
  const Stored<float> stored;
  int calls = 0;
  const LayerOptions options{.make_dense = [&]() -> DenseFfn {
    return [&](Context&, ConstMatrixView x, MatrixView y, FfnCounts*) {
      EXPECT_EQ(x.rows, y.rows);
      ++calls;
    };
  }};
  Layer layer(context, stored.weights(), stored.form, options);
  run(layer, context, random_matrix<float>(40, kWidth, 9));
  EXPECT_GT(calls, 0);
  Layer few(context, stored.weights(), stored.form, options);
  calls = 0;
  run(few, context, random_matrix<float>(8, kWidth, 9));
  EXPECT_EQ(calls, 0) << "of too few inputs";
}

// The layer's own dense variant: what ffn() computes, but for the rounding of h.
TYPED_TEST(LayerTest, OwnDenseFormIsTheLayer) {
  constexpr bool kBf16 = std::is_same_v<TypeParam, bf16>;
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 3, .tier = tier});
    for (const bool gated : {true, false}) {
      Stored<TypeParam> stored(gated, 0.0F);
      const std::vector<float> up_bias(static_cast<std::size_t>(kNeurons), 0.25F);
      const std::vector<float> down_bias(static_cast<std::size_t>(kWidth), -0.5F);
      for (const Activation gate : kActivations) {
        stored.form.gate = {gate, 0.05F};
        for (const Activation up : {Activation::identity, Activation::relu}) {
          if (gated) stored.form.up = up;
          if (gated) stored.form.up_bias = up_bias;
          stored.form.down_bias = down_bias;
          LayerOptions options;
          options.path = LayerPath::dense;
          Layer layer(context, stored.weights(), stored.form, options);
          const bool plain = gate == Activation::relu && up == Activation::identity;
          for (const std::int64_t rows :
               plain ? std::vector<std::int64_t>{1, 33, 600} : std::vector<std::int64_t>{33}) {
            const auto x = random_matrix<TypeParam>(rows, kWidth, 7);
            TestMatrix<TypeParam> y(rows, kWidth);
            layer.prepare(context, random_matrix<TypeParam>(64, kWidth, 8).view());
            FfnCounts counts, expected_counts;
            EXPECT_EQ(layer.run(context, x.view(), y.view(), &counts), LayerPath::dense);
            const auto expected = stored.expected(context, x, &expected_counts);
            EXPECT_EQ(counts.row_nnz, expected_counts.row_nnz);
            EXPECT_EQ(counts.neuron_nnz, expected_counts.neuron_nnz);
            // Both round y, one h: each by half a unit, of the sum of magnitudes at most.
            const auto magnitude = stored.magnitudes(x);
            const double bound = kBf16 ? 3 * 0x1p-8 : 0x1p-20;
            for (std::int64_t r = 0; r < rows; ++r) {
              for (std::int64_t c = 0; c < kWidth; ++c) {
                ASSERT_LE(std::abs(y.value(r, c) - expected.value(r, c)),
                          bound * magnitude.at(static_cast<std::size_t>(r * kWidth + c)))
                    << name_of(tier) << gated << name_of(gate) << rows;
              }
            }
          }
        }
      }
    }
  }
}

// What is not finite stands where ffn() has it, whatever the density.
TEST(LayerDense, WhatIsNotFiniteStandsWhereFfnHasIt) {
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    LayerOptions options;
    options.path = LayerPath::dense;
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      for (const int where : {0, 1, 2, 3}) {  // x, gate, up, down
        Stored<float> stored(true, 0.0F);
        auto x = random_matrix<float>(40, kWidth, 9);
        if (where == 0) x.set(3, 5, bad);
        if (where == 1) stored.gate.set(7, 5, bad);
        if (where == 2) stored.up.set(7, 5, bad);
        if (where == 3) stored.down.set(5, 7, bad), stored.neuron_major.set(7, 5, bad);
        Layer layer(context, stored.weights(), stored.form, options);
        layer.prepare(context, random_matrix<float>(64, kWidth, 8).view());
        TestMatrix<float> y(40, kWidth);
        const LayerPath path = layer.run(context, x.view(), y.view());
        EXPECT_EQ(path, where < 2 ? LayerPath::dense : LayerPath::sparse) << where;
        const auto expected = stored.expected(context, x);
        for (std::int64_t r = 0; r < 40; ++r) {
          for (std::int64_t c = 0; c < kWidth; ++c) {
            const float a = y.value(r, c), b = expected.value(r, c);
            ASSERT_EQ(std::isfinite(a), std::isfinite(b))
                << name_of(tier) << where << ' ' << bad << ' ' << r << ' ' << c;
            ASSERT_EQ(std::isnan(a), std::isnan(b));
          }
        }
      }
    }
  }
}

// A u that no neuron needs may overflow, or have a bias that is not finite.
TEST(LayerDense, WhatOverflowsWhereNothingFiresReachesNothing) {
  constexpr float kLarge = std::numeric_limits<float>::max();
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const int how : {0, 1, 2}) {  // a bias, u, u²
      Stored<float> stored(true, 0.0F);
      std::vector<float> up_bias(static_cast<std::size_t>(kNeurons), 0.0F);
      stored.gate_bias[7] = -1e6F;  // never fires
      if (how == 0) up_bias[7] = std::numeric_limits<float>::infinity();
      if (how == 0) stored.form.up_bias = up_bias;
      if (how == 2) stored.form.up = Activation::relu_squared;
      for (std::int64_t d = 0; d < kWidth && how > 0; ++d) {
        stored.up.set(7, d, how == 1 ? kLarge : 1e25F);
      }
      auto x = random_matrix<float>(40, kWidth, 9);
      for (std::int64_t r = 0; r < 40; ++r) x.set(r, 0, 9.0F);
      Layer layer(context, stored.weights(), stored.form, {.path = LayerPath::dense});
      TestMatrix<float> y(40, kWidth);
      EXPECT_EQ(layer.run(context, x.view(), y.view()), LayerPath::dense);
      for (std::int64_t r = 0; r < 40; ++r) {
        for (std::int64_t c = 0; c < kWidth; ++c) ASSERT_TRUE(std::isfinite(y.value(r, c))) << how;
      }
    }
  }
}

// Where the dense variant cannot be made, a choice falls back, and a demand is an error.
TEST(LayerDense, AFailureToMakeItIsNoFailureOfACall) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored(true, 0.0F);
  const auto x = random_matrix<float>(64, kWidth, 9);
  LayerOptions options{.make_dense = []() -> DenseFfn { throw std::runtime_error("no memory"); }};
  options.cost = CostModel{"here", true, {1}, {0.0, 1.0}, {1e-9}, {{1.0, 1.0}}};
  Layer chosen(context, stored.weights(), stored.form, options);
  EXPECT_TRUE(same(run(chosen, context, x), stored.expected(context, x)));
  EXPECT_EQ(chosen.chooser(), nullptr);
  options.path = LayerPath::dense;
  Layer asked(context, stored.weights(), stored.form, options);
  EXPECT_THROW(run(asked, context, x), std::runtime_error);
  EXPECT_THROW(run(asked, context, x), std::runtime_error) << "again";
}

// describe() beside calls that change what it describes.
TEST(LayerDense, IsDescribedWhileItRuns) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored(true, 0.0F);
  Layer layer(context, stored.weights(), stored.form);
  std::atomic<bool> done = false;
  std::thread describes([&] {
    const Context own({.threads = 1, .tier = {}});
    while (!done) EXPECT_FALSE(layer.describe(own, 64).empty());
  });
  for (std::int64_t rows = 32; rows < 48; ++rows) {
    run(layer, context, random_matrix<float>(rows, kWidth, 9));
  }
  done = true;
  describes.join();
  Layer dense(context, stored.weights(), stored.form, {.path = LayerPath::dense});
  EXPECT_THAT(dense.describe(context, 8), HasSubstr("every call is dense"));
}

TEST(LayerDense, LayersAreNeverDenseOnRequest) {
  Context context({.threads = 1, .tier = {}});
  Stored<float> stored(true, 0.0F);
  const auto x = random_matrix<float>(64, kWidth, 9);
  Layer off(context, stored.weights(), stored.form, {.path = LayerPath::sparse});
  run(off, context, x);
  EXPECT_EQ(off.chooser(), nullptr);
}

TEST(LayerMistakes, AreNamed) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored;
  const auto made = [&](const StoredWeights& w) {
    return message_of([&] { Layer(context, w, stored.form); });
  };
  StoredWeights w = stored.weights();
  w.down = stored.neuron_major.view();
  EXPECT_THAT(made(w), HasSubstr("down: expected f32 [200, 200], got f32 [200, 72]"));
  w = stored.weights();
  w.up = stored.down.view();
  EXPECT_THAT(made(w), HasSubstr("up: expected f32 [200, 72]"));
  w = stored.weights();
  w.gate.rows = 0;
  EXPECT_THAT(made(w), HasSubstr("gate: expected at least one row"));
  const TestMatrix<bf16> other(kNeurons, kWidth);
  w = stored.weights();
  w.up = other.view();
  EXPECT_THAT(made(w), HasSubstr("up: expected f32"));

  Layer layer(context, stored.weights(), stored.form);
  const TestMatrix<float> narrow(64, kWidth - 1);
  EXPECT_THAT(message_of([&] {
                TestMatrix<float> y(64, kWidth);
                layer.run(context, narrow.view(), y.view());
              }),
              HasSubstr("x: expected"));
  EXPECT_THAT(message_of([&] { layer.examine(context, TestMatrix<float>(31, kWidth).view()); }),
              HasSubstr("32 or more inputs, got 31"));
  EXPECT_THAT(message_of([&] { layer.prepare(LayerFindings{}); }), HasSubstr("findings"));
  LayerFindings findings = layer.examine(context, random_matrix<float>(40, kWidth, 1).view());
  findings.fired[3] = 41;
  EXPECT_THAT(message_of([&] { layer.prepare(findings); }),
              HasSubstr("expected neurons that 0 to 40 inputs fired, got 41"));
  findings.fired[3] = -1;
  EXPECT_THAT(message_of([&] { layer.prepare(findings); }), HasSubstr("got -1"));
  findings.fired[3] = 0;
  findings.candidates = 1.5;
  EXPECT_THAT(message_of([&] { layer.prepare(findings); }), HasSubstr("candidates"));
  LayerOptions options;
  options.cost = CostModel{};
  EXPECT_THAT(message_of([&] { Layer(context, stored.weights(), stored.form, options); }),
              HasSubstr("cost: expected a figure for each"));
  // x and y that overlap are refused on either path.
  for (const LayerPath path : {LayerPath::sparse, LayerPath::dense}) {
    Layer forced(context, stored.weights(), stored.form, {.path = path});
    TestMatrix<float> both(80, kWidth);
    EXPECT_THAT(message_of([&] {
                  forced.run(context, both.view().slice(0, 50), both.view().slice(30, 50));
                }),
                HasSubstr("overlap"));
  }
  EXPECT_THAT(message_of([&] { (void)layer.describe(context, -3); }),
              HasSubstr("rows: expected 0 to 2147483647, got -3"));
  EXPECT_THAT(message_of([&] {
                layer.prepare(context, {nullptr, DType::f32, 8, kWidth});
              }),
              HasSubstr("sample: data is null"));
  // No rows: nothing is decided by them.
  TestMatrix<float> none(0, kWidth);
  layer.run(context, none.view(), none.view());
}

}  // namespace
}  // namespace twell
