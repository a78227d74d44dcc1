// The built-in cost, scaled by timings that are made up.
#include "layer/scaled_cost.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "decoder/feed_forward.h"
#include "device/calibration.h"
#include "tests/decoder/exact_layer.h"
#include "twell/device.h"

namespace twell::lm {
namespace {

constexpr CpuTier kTier = CpuTier::avx512;
constexpr FfnShape kShape{2048, 5632};
constexpr double kDensity = 0.1;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

CostModel built_in() { return built_in_cost_model(kTier); }

// A machine whose paths take so many times as long as built in.
LayerTiming slower(std::int64_t tokens, double dense, double sparse,
                   const FfnShape& shape = kShape) {
  return {tokens, dense * built_in().dense_us(tokens, shape),
          sparse * built_in().sparse_us(tokens, kDensity, shape), kDensity};
}

CostModel scaled_by(double dense, double sparse) {
  return scaled(built_in(), kShape,
                {slower(1, dense, sparse), slower(8, dense, sparse), slower(64, dense, sparse)});
}

TEST(ScaledCost, DenseTwiceAsSlowAsBuiltInIsSparse) {
  const double density = 0.4;
  EXPECT_TRUE(built_in().prefers_dense(64, density, kShape));
  const CostModel cost = scaled_by(2, 1);
  EXPECT_FALSE(cost.prefers_dense(64, density, kShape));
  EXPECT_DOUBLE_EQ(cost.dense_us(64, kShape), 2 * built_in().dense_us(64, kShape));
  EXPECT_DOUBLE_EQ(cost.sparse_us(64, density, kShape), built_in().sparse_us(64, density, kShape));
  EXPECT_FALSE(built_in().prefers_dense(64, 0.05, kShape));
  EXPECT_TRUE(scaled_by(1, 2).prefers_dense(64, 0.05, kShape));
  // A machine that is faster at everything chooses as built in, but where the margin decides.
  for (const double d : {0.01, 0.05, 0.5, 1.0}) {
    EXPECT_EQ(scaled_by(0.05, 0.05).prefers_dense(64, d, kShape),
              built_in().prefers_dense(64, d, kShape));
  }
}

TEST(ScaledCost, TokensHaveFactorsOfTheirOwn) {
  const CostModel cost =
      scaled(built_in(), kShape, {slower(1, 2, 3), slower(8, 0.5, 1), slower(64, 4, 1.5)});
  EXPECT_DOUBLE_EQ(cost.dense_us(1, kShape), 2 * built_in().dense_us(1, kShape));
  EXPECT_DOUBLE_EQ(cost.sparse_us(1, 0.4, kShape), 3 * built_in().sparse_us(1, 0.4, kShape));
  EXPECT_DOUBLE_EQ(cost.dense_us(8, kShape), 0.5 * built_in().dense_us(8, kShape));
  // Beyond the timed ones the last one's.
  for (const std::int64_t tokens : {64, 512, 4096}) {
    EXPECT_NEAR(cost.dense_us(tokens, kShape) / built_in().dense_us(tokens, kShape), 4, 1e-9);
    EXPECT_NEAR(cost.sparse_us(tokens, 0.0, kShape) / built_in().sparse_us(tokens, 0.0, kShape),
                1.5, 1e-9);
  }
  ASSERT_EQ(cost.scales.size(), 3U);
  EXPECT_EQ(cost.scales[2].tokens, 64);
  EXPECT_EQ(cost.source(),
            "built-in figures of another machine, scaled by timing a layer: dense by 2.00, 0.50, "
            "4.00, sparse by 3.00, 1.00, 1.50 at 1, 8, 64 tokens");
}

TEST(ScaledCost, PathsAreAtMostTenApart) {
  EXPECT_NEAR(scaled_by(0.5, 50).scales[0].sparse, 5, 1e-9);
  EXPECT_NEAR(scaled_by(0.5, 50).scales[0].dense, 0.5, 1e-9);
  EXPECT_NEAR(scaled_by(50, 0.5).scales[0].sparse, 5, 1e-9);
}

TEST(ScaledCost, WhatIsAbsurdChangesNothing) {
  for (const double bad : {0.0, -1.0, kNan, kInfinity, 1e-3, 1e3}) {
    for (const LayerTiming& timing : {slower(8, bad, 1), slower(8, 1, bad)}) {
      const CostModel cost =
          scaled(built_in(), kShape, {slower(1, 2, 1), timing, slower(64, 2, 1)});
      EXPECT_EQ(cost.dense, built_in().dense) << bad;
      EXPECT_EQ(cost.sparse, built_in().sparse) << bad;
      EXPECT_EQ(cost.source(), built_in().source());
    }
  }
  EXPECT_TRUE(scaled(built_in(), kShape, {}).scales.empty());
}

// Of a tier whose timings say that paths take so many times as long.
struct Machine {
  double times = 1;
  std::vector<std::int64_t> asked = {};

  CostModel cost(const FfnShape& shape, double density = kDensity, int threads = 2,
                 std::int64_t rows = 32) {
    return scaled_cost(kTier, threads, {shape}, density, rows,
                       [&](std::int64_t tokens) {
                         asked.push_back(tokens);
                         return slower(tokens, times, 1, shape);
                       })
        .cost;
  }
};

TEST(ScaledCost, LayersAlikeAreTimedOnceAProcess) {
  Machine machine{2};
  const FfnShape shape{2048, 5000};
  EXPECT_NEAR(machine.cost(shape).scales.at(0).dense, 2, 1e-9);
  EXPECT_EQ(machine.asked, (std::vector<std::int64_t>{1, 8, 64}));
  machine.times = 3;
  EXPECT_NEAR(machine.cost(shape, 0.11).scales.at(0).dense, 2, 1e-9);
  EXPECT_EQ(machine.asked.size(), 3U);
  EXPECT_NEAR(machine.cost(shape, 0.001).scales.at(0).dense, 3, 1e-9);  // a screen may serve there
  machine.cost(shape, kDensity, 3);
  machine.cost({2048, 5001});
  machine.cost({2048, 5000, false});
  machine.cost({2048, 5000, true, DType::f32});
  EXPECT_EQ(machine.asked.size(), 6 * 3U);
}

// Factors are those of the layer that was timed, whatever the density of one that shares them.
TEST(ScaledCost, ALayerAlikeHasTheFactorsThatWereTimed) {
  Machine machine{2};
  const FfnShape shape{2048, 4994};
  for (const double density : {kDensity, 0.09, 0.12}) {
    EXPECT_NEAR(machine.cost(shape, density).scales.at(1).sparse, 1, 1e-9) << density;
  }
  EXPECT_EQ(machine.asked.size(), 3U);
}

TEST(ScaledCost, ManyTokensAreTimedWhereTheyTakeLittleTime) {
  Machine fast{0.05};
  fast.cost({256, 512});
  EXPECT_EQ(fast.asked, (std::vector<std::int64_t>{1, 8, 64, 512}));
  Machine slow{20};
  slow.cost({2048, 4999});
  EXPECT_EQ(slow.asked, (std::vector<std::int64_t>{1, 8, 64}));
}

TEST(ScaledCost, ManyTokensAreTimedWhereTheyCome) {
  Machine slow{20};
  const FfnShape shape{2048, 4996};
  EXPECT_EQ(slow.cost(shape, kDensity, 2, 181).scales.size(), 3U);
  slow.times = 40;
  const CostModel cost = slow.cost(shape, kDensity, 2, 182);
  EXPECT_EQ(slow.asked, (std::vector<std::int64_t>{1, 8, 64, 512}));
  EXPECT_NEAR(cost.scales.at(2).dense, 20, 1e-9);
  EXPECT_NEAR(cost.scales.at(3).dense, 40, 1e-9);
  slow.cost(shape, kDensity, 2, 8192);
  EXPECT_EQ(slow.asked.size(), 4U);
  // Where these cannot be timed, those of few tokens go on serving.
  const FfnShape other{2048, 4995};
  Machine machine{20};
  machine.cost(other);
  machine.times = kInfinity;
  EXPECT_EQ(machine.cost(other, kDensity, 2, 512).scales.size(), 3U);
  EXPECT_EQ(machine.cost(other, kDensity, 2, 512).scales.size(), 3U);
  EXPECT_EQ(machine.asked.size(), 4U);
}

// All layers of a model come in one busy moment.
TEST(ScaledCost, ABusyMachineIsLeftAlone) {
  Machine busy{kInfinity};
  for (int call = 0; call < 6; ++call) EXPECT_TRUE(busy.cost({2048, 4997}).scales.empty());
  EXPECT_EQ(busy.asked, (std::vector<std::int64_t>{1}));
}

// What was timed before the machine was busy is kept, and the rest is timed when it is not.
TEST(ScaledCost, ABusyMachineIsAskedAgain) {
  const FfnShape shape{2048, 4992};
  bool busy = true;
  std::vector<std::int64_t> asked;
  const auto call = [&] {
    return scaled_cost(kTier, 2, {shape}, kDensity, 32, [&](std::int64_t tokens) {
      asked.push_back(tokens);
      return slower(tokens, busy && tokens > 1 ? kInfinity : 2, 1, shape);
    });
  };
  ScaledCost scaled = call();
  EXPECT_FALSE(scaled.settled);
  EXPECT_TRUE(scaled.cost.scales.empty());
  busy = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  scaled = call();
  EXPECT_TRUE(scaled.settled);
  EXPECT_EQ(scaled.cost.scales.size(), 3U);
  call();
  EXPECT_EQ(asked, (std::vector<std::int64_t>{1, 8, 8, 64}));
}

TEST(ScaledCost, AFailureLeavesTheBuiltInFigures) {
  int calls = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const CostModel cost =
        scaled_cost(kTier, 2, {{2048, 4998}}, kDensity, 32, [&](std::int64_t) -> LayerTiming {
          ++calls;
          throw std::runtime_error("no memory");
        }).cost;
    EXPECT_EQ(cost.dense, built_in().dense);
    EXPECT_TRUE(cost.scales.empty());
  }
  EXPECT_EQ(calls, 1);
}

TEST(ScaledCost, RunsTakeTurnsAndFewCalls) {
  std::string order;
  const auto call = [&](char side) {
    return [&order, side](std::int64_t) {
      if (order.empty() || order.back() != side) order += side;
    };
  };
  const LayerTiming timing = time_in_turns(8, call('d'), call('s'));
  EXPECT_EQ(timing.tokens, 8);
  EXPECT_GT(timing.dense_us, 0);
  EXPECT_GT(timing.sparse_us, 0);
  EXPECT_EQ(order.substr(0, 4), "dsds");
  EXPECT_LE(order.size(), 10U);
}

class ScaledLayer : public testing::Test {
 protected:
  void TearDown() override { setenv("TWELL_CALIBRATION", "", 1); }
  static std::unique_ptr<FeedForward> layer(std::int64_t neurons) {
    const test::Layer made =
        test::make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, neurons);
    return make_sparse_feed_forward(made.parameters, made.activation, FfnPath::automatic);
  }
  static at::Tensor rows(std::int64_t n) { return at::randn({n, 64}).to(at::kBFloat16); }
};

TEST_F(ScaledLayer, FirstCallTimesUnlessSwitchedOff) {
  const c10::InferenceMode inference;
  setenv("TWELL_CALIBRATION", "", 1);
  const auto off = layer(160);
  off->forward(rows(64), 0, nullptr);
  EXPECT_TRUE(off->cost()->scales.empty());
  EXPECT_NE(off->describe(1).find("built-in figures"), std::string::npos);

  setenv("TWELL_CALIBRATION", "no such file", 1);
  const auto on = layer(160);
  EXPECT_TRUE(on->cost()->scales.empty());
  on->forward(rows(32), 0, nullptr);
  // Where timings of so small a layer are absurd on this machine, the figures stay.
  const CostModel cost = *on->cost();
  if (!cost.scales.empty()) {
    EXPECT_NE(on->describe(1).find("scaled by timing"), std::string::npos);
  }
  on->forward(rows(64), 0, nullptr);
  EXPECT_EQ(on->cost()->dense, cost.dense);  // no second time

  const auto few = layer(161);
  few->forward(rows(8), 0, nullptr);
  EXPECT_TRUE(few->cost()->scales.empty()) << "few rows are no sample";
}

TEST_F(ScaledLayer, CalibrationHasPrecedence) {
  const c10::InferenceMode inference;
  const std::string file = testing::TempDir() + "scaled-cost-calibration.json";
  setenv("TWELL_CALIBRATION", file.c_str(), 1);
  CostModel calibrated = built_in_cost_model(default_cpu_tier());
  calibrated.measured_on = machine_key(default_cpu_tier(), at::get_num_threads());
  calibrated.dense[0] = 7;
  save_cost_model(calibrated);
  const auto ffn = layer(162);
  ffn->forward(rows(64), 0, nullptr);
  EXPECT_EQ(ffn->cost()->dense, calibrated.dense);
  EXPECT_EQ(ffn->cost()->source(), "measured on " + calibrated.measured_on);
  std::remove(file.c_str());
}

}  // namespace
}  // namespace twell::lm
