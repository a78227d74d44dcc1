#include "train/schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "tests/support/message_of.h"

namespace twell::lm {
namespace {

using test::message_of;

Recipe recipe() {
  Recipe r;
  r.steps = 101;
  r.warmup_steps = 20;
  r.peak_lr = 1e-3;
  r.min_lr_ratio = 0.1;
  return r;
}

TEST(LearningRate, WarmsUpFromOneStepsShareToThePeak) {
  const Recipe r = recipe();
  EXPECT_DOUBLE_EQ(learning_rate(r, 0), 1e-3 / 20);
  EXPECT_DOUBLE_EQ(learning_rate(r, 9), 0.5e-3);
  EXPECT_DOUBLE_EQ(learning_rate(r, 19), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(r, 20), 1e-3);
}

TEST(LearningRate, FollowsACosineToItsFloor) {
  const Recipe r = recipe();                          // the cosine runs from step 20 to step 100
  EXPECT_NEAR(learning_rate(r, 60), 0.55e-3, 1e-15);  // half-way: the mean
  EXPECT_NEAR(learning_rate(r, 40), 1e-4 + 9e-4 * 0.8535533905932737, 1e-15);  // cos²(π/8)
  EXPECT_DOUBLE_EQ(learning_rate(r, 100), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(r, 5000), 1e-4);
}

TEST(LearningRate, NeedsNoWarmup) {
  Recipe r = recipe();
  r.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(r, 0), 1e-3);
  r.steps = 1;
  EXPECT_DOUBLE_EQ(learning_rate(r, 0), 1e-3);
}

TEST(L1Coefficient, StartsLateAndGrowsLinearly) {
  Recipe r = recipe();
  r.l1 = 0.5;
  r.l1_start = 10;
  r.l1_warmup = 5;
  EXPECT_EQ(l1_coefficient(r, 9), 0.0);
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 10), 0.1);
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 13), 0.4);
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 14), 0.5);
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 99), 0.5);
  r.l1_warmup = 0;
  EXPECT_EQ(l1_coefficient(r, 9), 0.0);
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 10), 0.5);
}

// numpy.interp by the step's number, which is 1 at first.
TEST(L1Coefficient, IsLinearBetweenStages) {
  Recipe r = recipe();
  r.l1 = 7;  // not looked at
  r.l1_stages = parse_l1_stages("10:0.25,20:0.5,20:1,60:3");
  for (const auto& [step, coefficient] : {std::pair(1, 0.25),
                                          {10, 0.25},
                                          {11, 0.275},
                                          {19, 0.475},
                                          {20, 0.5},
                                          {21, 1.05},
                                          {40, 2.0},
                                          {60, 3.0},
                                          {99, 3.0}}) {
    EXPECT_DOUBLE_EQ(l1_coefficient(r, step - 1), coefficient) << step;
  }
  r.steps = 1000;
  r.shortened_to = 100;
  EXPECT_DOUBLE_EQ(l1_coefficient(r, 3), 2.0) << "step 4 of 6, as 40 of 60";
  // The warm-up of --l1 is two stages.
  Recipe same = recipe();
  same.l1 = 0.5;
  same.l1_start = 10;
  same.l1_warmup = 5;
  r = recipe();
  r.l1_stages = parse_l1_stages("10:0,15:0.5");
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(l1_coefficient(r, step), l1_coefficient(same, step)) << step;
  }
}

TEST(RecipeTest, ComesBackFromItsJson) {
  Recipe r = recipe();
  r.l1 = 0.1234567890123456789;
  r.seed = std::numeric_limits<std::uint64_t>::max();
  r.compute = ComputeType::bf16;
  r.recompute = true;
  r.sparse = false;
  r.time_budget_s = 12.5;
  r.l1_stages = {{0, 0.0}, {7, 1.0 / 3}, {7, 2e-5}};
  EXPECT_EQ(Recipe::from_json(r.to_json(), "file"), r);
}

// The one message a user sees must name file or room, field and value.
TEST(RecipeTest, RefusesWhatIsOutOfRange) {
  const auto message = [](auto change) {
    Recipe r = recipe();
    change(r);
    return message_of([&] { r.validate(); });
  };
  EXPECT_EQ(message([](Recipe&) {}), "");
  EXPECT_NE(message([](Recipe& r) { r.steps = 0; }).find("steps: expected 1 to"),
            std::string::npos);
  EXPECT_NE(message([](Recipe& r) { r.peak_lr = -1; }).find("peak_lr"), std::string::npos);
  EXPECT_NE(message([](Recipe& r) { r.l1 = std::nan(""); }).find("l1: "), std::string::npos);
  EXPECT_NE(message([](Recipe& r) { r.beta2 = 1.0; }).find("beta2"), std::string::npos);
  EXPECT_NE(message([](Recipe& r) { r.warmup_steps = 101; }).find("warmup_steps"),
            std::string::npos);
  const auto stages = [&](const char* text) {
    return message([&](Recipe& r) { r.l1_stages = parse_l1_stages(text); });
  };
  EXPECT_EQ(stages("0:0,5:1,5:2"), "");
  EXPECT_NE(stages("5:0,4:1").find("expected steps that ascend, got 4 after 5"), std::string::npos);
  EXPECT_NE(stages("-1:0").find("got -1 after 0"), std::string::npos);
  for (const char* text : {"1:-2", "1:nan", "1:2e6"}) {
    EXPECT_NE(stages(text).find("l1_stages: expected coefficients of 0 to 1"), std::string::npos);
  }
  for (const char* text : {"1", "1:", ":1", "1:2,", "1:2 ", "1:2;3:4", "1.5:2", "a:b"}) {
    EXPECT_NE(
        message_of([&] { parse_l1_stages(text); }).find("200:1e-5, got \"" + std::string(text)),
        std::string::npos)
        << text;
  }
}

TEST(RecipeTest, RefusesJsonOfAnotherKind) {
  const auto message = [](const std::string& text) {
    return message_of([&] { Recipe::from_json(text, "state.json"); });
  };
  EXPECT_NE(message("[]").find("state.json"), std::string::npos);
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(recipe().to_json());
    json[key] = value;
    if (value.is_null()) json.erase(key);
    return message(json.dump());
  };
  EXPECT_EQ(changed("steps", 500), "");
  EXPECT_NE(changed("steps", 1.5).find("steps"), std::string::npos);
  EXPECT_NE(changed("steps", "5").find("steps"), std::string::npos);
  EXPECT_NE(changed("stepz", 5).find("stepz"), std::string::npos);
  EXPECT_NE(changed("compute", "fp8").find("fp8"), std::string::npos);
  // A share that was held out and is not said to be would be trained on.
  EXPECT_NE(changed("validation_fraction", nullptr).find("validation_fraction is missing"),
            std::string::npos);
}

// What checkpoints had while the command line trained with teachers and thresholds, too.
TEST(RecipeTest, OfAnOlderRunIsTakenUnlessItUsedWhatOnlyPythonHas) {
  const auto older = [](const nlohmann::json& changes) {
    auto json = nlohmann::json::parse(recipe().to_json());
    json.update({{"teacher", ""},
                 {"hidden_weight", 1.0},
                 {"temperature", 1.0},
                 {"anneal_steps", 0},
                 {"anneal_from", ""},
                 {"share", 0.0},
                 {"share_steps", 0}});
    json.update(changes);
    return Recipe::from_json(json.dump(), "state.json");
  };
  EXPECT_EQ(older(nlohmann::json::object()), recipe());
  EXPECT_EQ(older({{"hidden_weight", 0.5}, {"share_steps", 7}}), recipe()) << "neither was used";
  const auto message = [&](const char* key, const nlohmann::json& value) {
    return message_of([&] { older({{key, value}}); });
  };
  for (const auto& [key, value, now] :
       {std::tuple(std::string("teacher"), nlohmann::json("dense"), "DistillationTrainer"),
        {"anneal_steps", 60, "AnnealingCallback"},
        {"share", 0.05, "ThresholdCallback"},
        {"teacher", 5, "DistillationTrainer"}}) {
    const std::string said = message(key.c_str(), value);
    EXPECT_NE(said.find("state.json: recipe: " + key + ": "), std::string::npos) << said;
    EXPECT_NE(said.find(std::string("twell.hf.") + now), std::string::npos) << said;
  }
}

TEST(RecipeTest, AShortenedRunKeepsItsProportions) {
  Recipe r = recipe();
  r.steps = 1000;
  r.warmup_steps = 100;
  EXPECT_EQ(r.scaled(r.warmup_steps), 100);
  r.shortened_to = 250;
  EXPECT_EQ(r.length(), 250);
  EXPECT_EQ(r.scaled(r.warmup_steps), 25);
  EXPECT_DOUBLE_EQ(learning_rate(r, 24), r.peak_lr);
  r.extend(300);
  EXPECT_EQ(r.length(), 300);
  EXPECT_EQ(r.scaled(r.warmup_steps), 30);
  r.extend(2000);
  EXPECT_EQ(r.length(), 2000);
  EXPECT_EQ(r.scaled(r.warmup_steps), 100);
}

TEST(RecipeTest, OfWhatIsResumedLittleMayChange) {
  const Recipe saved = recipe();
  Recipe now = saved;
  now.steps += 10;
  now.sparse = !now.sparse;
  now.save_every = 3;
  EXPECT_NO_THROW(now.check_resumed(saved, "state.json"));
  now.validation_fraction = 0.25;
  const std::string message = message_of([&] { now.check_resumed(saved, "state.json"); });
  for (const char* part : {"state.json", "validation_fraction", "0.01", "0.25"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace twell::lm
