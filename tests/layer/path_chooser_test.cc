// Sparse or dense, by what earlier calls showed.
#include <gtest/gtest.h>

#include <vector>

#include "twell/cost.h"

namespace twell {
namespace {

// The sparse path takes 4 · density of the dense one's time, of 100 neurons.
PathChooser four_times() {
  return {{{}, true, {1, 2}, {0.0, 1.0}, {1.0, 1.0}, {{1e-9, 4.0}, {1e-9, 4.0}}}, {1, 100}};
}

TEST(PathChooser, DensityIsAMovingAverage) {
  PathChooser chooser = four_times();
  EXPECT_FALSE(chooser.dense(1)) << "nothing is known";
  EXPECT_EQ(chooser.density(), std::nullopt);
  const auto saw = [&](std::int64_t nnz, std::int64_t rows) {
    chooser.saw(nnz, rows);
    return chooser.dense(1);
  };
  EXPECT_FALSE(saw(0, 0));
  EXPECT_EQ(chooser.density(), std::nullopt) << "no rows";
  EXPECT_FALSE(saw(10, 1));  // the first one counts in full
  EXPECT_EQ(chooser.density(), 0.1);
  EXPECT_FALSE(saw(74, 1));  // one token of 64
  EXPECT_DOUBLE_EQ(*chooser.density(), 0.1 + 0.64 / 64);
  EXPECT_TRUE(saw(23 * 64, 64));
  EXPECT_EQ(chooser.density(), 0.23) << "64 tokens or more count in full; from 1 / 4.4 on dense";
  EXPECT_FALSE(saw(22 * 200, 200));
}

TEST(PathChooser, HotNeuronsShortenTheSparsePath) {
  PathChooser chooser = four_times();
  chooser.saw(30 * 64, 64);
  EXPECT_TRUE(chooser.dense(1)) << "1.2 times the dense one";
  EXPECT_FALSE(chooser.dense(1, 0.75)) << "0.9 times, and the margin";
  EXPECT_TRUE(chooser.dense(1, 0.76));
}

TEST(PathChooser, SamplesSomeCallsAndTheFirstAfterARecording) {
  PathChooser chooser = four_times();
  std::vector<int> sampled;
  for (int call = 0; call < 40; ++call) {
    if (chooser.samples(/*recording=*/call == 20)) sampled.push_back(call);
  }
  EXPECT_EQ(sampled, (std::vector<int>{0, 1, 16, 21, 33}));
}

TEST(PathChooser, GoesByTheCostThatItHasNow) {
  PathChooser chooser = four_times();
  chooser.saw(50, 1);
  EXPECT_TRUE(chooser.dense(1));
  chooser.set_cost({"here", true, {1}, {0.0, 1.0}, {1.0}, {{1e-9, 1e-9}}});
  EXPECT_EQ(chooser.cost().measured_on, "here");
  EXPECT_FALSE(chooser.dense(1));
}

TEST(CostModel, AsksLessOfFiguresOfThisMachine) {
  CostModel cost{"", true, {1}, {0.0, 1.0}, {1.05}, {{1.0, 1.0}}};
  const FfnShape shape{100, 100};
  EXPECT_TRUE(cost.prefers_dense(1, 0.5, shape)) << "sparse is 5 % faster, on another machine";
  cost.measured_on = "here";
  EXPECT_FALSE(cost.prefers_dense(1, 0.5, shape));
  cost.dense = {1.01};
  EXPECT_TRUE(cost.prefers_dense(1, 0.5, shape)) << "1 % faster";
  cost.measured_on.clear();
  cost.dense = {1.05};
  cost.scales = {{1, 1.0, 1.0}};
  EXPECT_FALSE(cost.prefers_dense(1, 0.5, shape));
}

}  // namespace
}  // namespace twell
