// Every operation on every tier of this machine against the fp64 reference.
#include <numeric>

#include "tests/ops/ffn_fixture.h"
#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class T>
class FfnTest : public testing::Test {
 protected:
  template <class F>
  static void on_every_tier(int threads, F f) {
    for (CpuTier tier : available_cpu_tiers()) {
      Context context({.threads = threads, .tier = tier});
      f(context);
    }
  }
};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(FfnTest, Types);

// The other tests loop over the tiers that the machine has: here one that it lacks counts as
// skipped.
class FfnTierTest : public testing::TestWithParam<CpuTier> {};
INSTANTIATE_TEST_SUITE_P(Every, FfnTierTest, testing::ValuesIn(kAllCpuTiers),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(FfnTierTest, RunsHere) {
  if (!cpu_tier_available(GetParam())) {
    GTEST_SKIP() << "tier " << name_of(GetParam()) << " is not available on this machine";
  }
  Context context({.threads = 2, .tier = GetParam()});
  Layer<bf16> layer({17, 40, 70});
  check_layer(context, layer);
}

TYPED_TEST(FfnTest, TailSizes) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63}) {
      Layer<TypeParam> layer({tokens, 40, 70});
      check_layer(context, layer, 16, 4);
    }
    for (std::int64_t depth : {1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 100, 257}) {
      Layer<TypeParam> layer({9, depth, 48});
      check_layer(context, layer, 32, 3);
    }
    for (std::int64_t neurons : {1, 2, 15, 16, 17, 31, 33, 64, 255, 256, 257, 513, 600}) {
      Layer<TypeParam> layer({18, 48, neurons});
      check_layer(context, layer);
    }
  });
}

TYPED_TEST(FfnTest, EveryActivationGatedAndNot) {
  this->on_every_tier(2, [](Context& context) {
    for (Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
      for (bool gated : {true, false}) {
        Layer<TypeParam> layer({37, 96, 300, gated, {kind, 0.25F}, 1.0F});
        check_layer(context, layer);
      }
    }
  });
}

TYPED_TEST(FfnTest, EveryDensityFromEmptyToFull) {
  this->on_every_tier(2, [](Context& context) {
    for (float shift : {20.0F, 3.0F, 2.0F, 1.0F, 0.0F, -1.0F, -20.0F}) {
      for (std::int32_t capacity : {1, 15, 16, 17, 64}) {
        Layer<TypeParam> layer({21, 64, 200, true, {}, shift});
        check_layer(context, layer, 64, capacity);
      }
    }
  });
}

TYPED_TEST(FfnTest, MoreRowsThanABlockAndMoreThreadsThanTiles) {
  for (const int threads : {5, 8, 16}) {
    this->on_every_tier(threads, [](Context& context) {
      // 1100: more than one block of rows on every machine.
      for (std::int64_t tokens : {1, 4, 193, 1100}) {
        Layer<TypeParam> layer({tokens, 64, 272});
        check_layer(context, layer);
      }
    });
  }
}

TYPED_TEST(FfnTest, NanAndInfinityPassThrough) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {3, 40}) {
      // H and D are no multiples of the panels: padding must not turn into NaN activations.
      Layer<TypeParam> layer({tokens, 45, 83});
      layer.x.set(0, 5, std::numeric_limits<float>::quiet_NaN());
      layer.x.set(1, 5, std::numeric_limits<float>::infinity());
      layer.gate.set(7, 1, -std::numeric_limits<float>::infinity());
      check_layer(context, layer, 16, 2);
    }
  });
}

TYPED_TEST(FfnTest, ZeroRows) {
  this->on_every_tier(2, [](Context& context) {
    Layer<TypeParam> layer({0, 32, 64});
    check_layer(context, layer);
  });
}

// Adversarial activity, forced through the packed operations.
TYPED_TEST(FfnTest, AdversarialPatterns) {
  this->on_every_tier(2, [](Context& context) {
    for (Pattern pattern : kAllPatterns) {
      for (std::int64_t tokens : {1, 3, 20}) {
        Layer<TypeParam> layer({tokens, 70, 530});
        const auto gate = activation_matrix<TypeParam>(pattern, tokens, 530, 4);
        const TwellMatrix packed =
            pack(gate.view(), {tokens, 530, 256, 8, dtype_of<TypeParam>::value});
        TestMatrix<TypeParam> y(tokens, 70);
        twell_gated_ffn(context, std::as_const(layer.x).view(), packed,
                        std::as_const(layer.up).view(), std::as_const(layer.down).view(), y.view());
        expect_output(packed, layer, y);
        layer.shape.gated = false;
        twell_spmm(context, packed, std::as_const(layer.down).view(), y.view());
        expect_output(packed, layer, y);
      }
    }
  });
}

// The same activity in the fused layer, with gathering and the dense product of what fired forced.
TYPED_TEST(FfnTest, AdversarialPatternsOnEveryPath) {
  for (Pattern pattern : kAllPatterns) {
    for (const auto& [tokens, gated] : {std::pair{20, true}, {65, false}, {130, true}}) {
      const auto wanted = activation_matrix<TypeParam>(pattern, tokens, 290, 4);
      auto layer = layer_that_fires<TypeParam>(
          tokens, 290, gated,
          [&](std::int64_t r, std::int64_t n) { return wanted.value(r, n) != 0.0; });
      std::int64_t nnz = 0;
      for (std::int64_t r = 0; r < tokens; ++r) {
        for (std::int64_t n = 0; n < 290; ++n) nnz += wanted.value(r, n) != 0.0;
      }
      check_every_path(layer, nnz);
    }
  }
}

// A third of the neurons fire for every row, some for half of them, the rest rarely: the fused
// layer multiplies the first densely and gathers the last. Weights that are not finite reach
// exactly the rows that fire their neuron.
TYPED_TEST(FfnTest, HotNeuronsAmongColdOnes) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {15, 16, 65, 193, 1100}) {
      for (bool gated : {true, false}) {
        Layer<TypeParam> layer({tokens, 70, 290, gated, {}, 2.5F});
        for (std::int64_t n = 0; n < 290; n += 3) layer.gate.set(n, 0, n % 2 == 0 ? 8.0F : 0.0F);
        check_layer(context, layer);
        layer.down.set(3, 9, std::numeric_limits<float>::infinity());
        layer.up.set(9, 4, std::numeric_limits<float>::quiet_NaN());
        check_layer(context, layer);
      }
    }
  });
}

// As many rows as a tier may gather in pieces of columns, the last one narrower; from none that
// fires to more neurons of a row than there is room for those of others.
TYPED_TEST(FfnTest, ManyRowsAreGathered) {
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const std::optional<double> hot_share : {std::optional<double>(), std::optional(2.0)}) {
      Context context({.threads = 2, .tier = tier, .hot_share = hot_share});
      for (const float shift : {30.0F, 1.5F, -30.0F}) {
        for (const bool gated : {true, false}) {
          Layer<TypeParam> layer({300, 290, 400, gated, {}, shift});
          check_layer(context, layer);
        }
      }
    }
  }
}

// Everything fires, and a block of few rows comes behind full ones: what threads share out is the
// plan's to say, not the block's. (Each block for itself once gave wrong sums from three threads
// on.)
TEST(FfnPlan, TheLastBlockMayBeSmall) {
  Context context({.threads = 8, .tier = {}});
  const std::int64_t block = plan_ffn(context, 1 << 20, {8, 64}, GateForm::packed).row_block;
  for (const std::int64_t rest : {1, 7, 8}) {
    Layer<bf16> layer({16 * block + rest, 8, 64, true, {}, -8.0F});
    check_layer(context, layer);
  }
}

// With AMX a block's gate goes through L2 in parts, and its rows gather pieces of columns.
TEST(FfnPlan, TilesTakeWhatL2Holds) {
  if (!cpu_tier_available(CpuTier::amx)) GTEST_SKIP() << "no AMX";
  Context context({.threads = 2, .tier = CpuTier::amx});
  for (const std::int64_t width : {64, 576, 2048, 8192}) {
    const FfnShape shape = {width, 5632};
    const FfnPlan few = plan_ffn(context, 100, shape, GateForm::packed);
    EXPECT_EQ(few.row_groups, 1);
    EXPECT_EQ(few.gather_columns, 0);
    const FfnPlan many = plan_ffn(context, 4096, shape, GateForm::packed);
    EXPECT_EQ(many.gather_columns, 256);
    EXPECT_NE(many.to_string().find(" in pieces of 256 columns"), std::string::npos);
    const std::int64_t rows = (many.row_block + many.row_groups - 1) / many.row_groups;
    EXPECT_LE(rows, std::max<std::int64_t>(128, cpu_caches().l2 / (2 * width + 1088)));
  }
}

// The thread with most units has little more to do than its share, up to 64 threads: what a plan
// says of tiles and groups, in the order in which the gate takes them.
TEST(FfnPlan, ThreadsShareTheGateEvenly) {
  struct Shape {
    std::int64_t width, neurons;
  };
  for (const Shape& shape :
       {Shape{2048, 5632}, {576, 1536}, {896, 4864}, {2560, 6912}, {4096, 11008}}) {
    for (const int threads : {1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64}) {
      Context context({.threads = threads, .tier = CpuTier::portable});
      for (const std::int64_t tokens : {1, 8, 64, 512, 2048}) {
        const FfnPlan plan =
            plan_ffn(context, tokens, {shape.width, shape.neurons}, GateForm::packed);
        SCOPED_TRACE(plan.to_string());
        const std::int64_t tiles = (shape.neurons + plan.tile - 1) / plan.tile;
        const std::int64_t rows = std::min(plan.row_block, tokens);
        std::vector<std::int64_t> work(static_cast<std::size_t>(threads));
        for (std::int64_t unit = 0; unit < tiles * plan.row_groups; ++unit) {
          const std::int64_t group = unit / tiles;
          const std::int64_t columns =
              std::min<std::int64_t>(plan.tile, shape.neurons - unit % tiles * plan.tile);
          work[static_cast<std::size_t>(unit % threads)] +=
              columns * (rows * (group + 1) / plan.row_groups - rows * group / plan.row_groups);
        }
        const std::int64_t all = std::accumulate(work.begin(), work.end(), std::int64_t{0});
        EXPECT_EQ(all, shape.neurons * rows);
        const double share = static_cast<double>(all) / threads;
        const auto most = static_cast<double>(*std::max_element(work.begin(), work.end()));
        // A tile of 64 columns, or 16 where rows are few, is as far as neurons are divided.
        const double step = tokens < 32 ? 16.0 : 64.0;
        const double of_step = step / (static_cast<double>(shape.neurons) / threads);
        EXPECT_LE(most / share, tokens < 512 ? std::max(1 / 0.9, 1 + of_step) : 1.12);
      }
    }
  }
}

TEST(FfnPlan, SaysEverything) {
  Context context({.threads = 2, .tier = CpuTier::portable});
  const FfnShape shape = {64, 1024};
  const FfnPlan one = plan_ffn(context, 1, shape, GateForm::packed);
  EXPECT_EQ(one.row_parts, 2);
  EXPECT_GT(one.hot_share, 1.0);  // gathering is all there is to do
  EXPECT_EQ(one.to_string(),
            "packed gate on portable, 2 threads, blocks of 1 row, tiles of 512 neurons, each row "
            "gathered in 2 parts");
  FfnPlan many = plan_ffn(context, 64, shape, GateForm::screened);
  EXPECT_EQ(many.row_parts, 1);
  EXPECT_LT(many.hot_share, 1.0);
  EXPECT_EQ(
      many.to_string(),
      "screened gate on portable, 2 threads, blocks of 64 rows, tiles of 512 neurons, neurons "
      "of 50 % of the rows and 6 more multiplied densely, the rest gathered");
  many.gate = GateForm::packed;
  EXPECT_EQ(many, plan_ffn(context, 64, shape, GateForm::packed));
  EXPECT_NE(many, plan_ffn(context, 65, shape, GateForm::packed));
  Context five({.threads = 5, .tier = CpuTier::portable});
  const FfnPlan shared = plan_ffn(five, 128, {64, 30}, GateForm::packed);
  EXPECT_EQ(shared.row_groups, 4);
  EXPECT_NE(shared.to_string().find("tiles of 64 neurons x 4 groups of rows"), std::string::npos);
  Context gathering({.threads = 2, .tier = CpuTier::portable, .hot_share = 2.0});
  EXPECT_NE(plan_ffn(gathering, 64, shape, GateForm::packed).to_string().find(", rows gathered"),
            std::string::npos);
  EXPECT_EQ(plan_ffn(gathering, 1024, shape, GateForm::packed).gather_columns, 0);
}

TEST(FfnState, TwoModelsAndTwoContextsInterleave) {
  Layer<bf16> a({17, 64, 128});
  Layer<float> b({9, 32, 80}, 7);
  Context one({.threads = 1, .tier = {}});
  Context two({.threads = 2, .tier = {}});
  for (int i = 0; i < 3; ++i) {
    check_layer(one, a);
    check_layer(two, b);
    check_layer(one, b);
    check_layer(two, a);
  }
}

TEST(FfnErrors, NameOperationAndArgument) {
  Context context({.threads = 1, .tier = {}});
  Layer<bf16> layer({4, 32, 64});
  TestMatrix<bf16> y(4, 32);
  const auto run = [&](ConstMatrixView x, const FfnWeights& weights, MatrixView out,
                       ActivationSpec a = {}) {
    return message_of([&] { ffn(context, x, weights, a, out); });
  };
  const ConstMatrixView x = layer.x.view();
  EXPECT_EQ(run(x, layer.weights(), y.view()), "");
  ConstMatrixView narrow = x;
  narrow.cols = 31;
  EXPECT_EQ(run(narrow, layer.weights(), y.view()),
            "twell::ffn: x: expected bf16 [4, 32], got bf16 [4, 31]");
  FfnWeights weights = layer.weights();
  weights.up->rows = 63;
  EXPECT_EQ(run(x, weights, y.view()), "twell::ffn: up: expected bf16 [64, 32], got bf16 [63, 32]");
  weights = layer.weights();
  weights.down.type = WeightType::f32;
  EXPECT_NE(run(x, weights, y.view()).find("twell::ffn: down"), std::string::npos);
  weights = layer.weights();
  weights.up->layout = WeightLayout::panels;
  EXPECT_EQ(run(x, weights, y.view()),
            "twell::ffn: up: expected a weight as stored, got a packed one");
  const FfnShape half = layer.weights().shape(DType::f16);
  EXPECT_EQ(message_of([&] { plan_ffn(context, 4, half, GateForm::packed); }),
            "twell::plan_ffn: shape: expected bf16 or f32, got f16");
  MatrixView short_y = y.view();
  short_y.rows = 3;
  EXPECT_NE(run(x, layer.weights(), short_y).find("y: expected bf16 [4, 32]"), std::string::npos);
  MatrixView odd = y.view();
  odd.data = static_cast<std::byte*>(odd.data) + 1;
  EXPECT_NE(run(x, layer.weights(), odd).find("aligned"), std::string::npos);
  EXPECT_NE(run(x, layer.weights(), y.view(), {Activation::fat_relu, -1.0F}).find("threshold"),
            std::string::npos);
}

}  // namespace
}  // namespace twell
