// A step of training in eager mode is the trainer's own step, up to rounding.
#include "measure/step_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/support/message_of.h"
#include "tests/train/tiny_run.h"

namespace twell::lm {
namespace {

using testing::HasSubstr;

Recipe still_recipe() {
  Recipe recipe = test::tiny_recipe();
  recipe.peak_lr = recipe.min_lr_ratio = recipe.l1 = 0.0;
  recipe.l1_warmup = 0;
  recipe.warmup_steps = 0;
  recipe.validation_fraction = 0.0;
  return recipe;
}

// As many tokens as a step has, so that the order of the windows does not matter.
TokenStream one_step(const Recipe& recipe) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i <= recipe.tokens_per_step(); ++i) {
    ids.push_back(static_cast<std::int32_t>((i * i * 5 + i) % 64));
  }
  return TokenStream(ids);
}

std::unique_ptr<Trainer> trainer_of(const io::ModelConfig& config, const Recipe& recipe) {
  return std::make_unique<Trainer>(make_model(config, at::kFloat, 3), recipe,
                                   TrainingData{one_step(recipe), 0});
}

TEST(EagerTraining, HasTheTrainersLossAndGradient) {
  io::ModelConfig plain = test::tiny_config();
  plain.gated = false;
  for (const io::ModelConfig& config : {test::tiny_config(), plain}) {
    for (const bool recompute : {false, true}) {
      Recipe recipe = still_recipe();
      recipe.accumulation = 2;
      recipe.recompute = recompute;
      const auto trainer = trainer_of(config, recipe);
      EagerTraining eager(*trainer, one_step(recipe));
      const StepResult own = trainer->step();
      for (const std::int64_t micro_batch : {1, 4, 8}) {
        eager.step(micro_batch);
        // fp32: sums over some thousand terms, in other orders.
        EXPECT_NEAR(eager.loss(), own.ce, 1e-5 * own.ce) << recompute << " " << micro_batch;
        EXPECT_NEAR(eager.grad_norm(), own.grad_norm, 1e-4 * own.grad_norm);
      }
      // With a learning rate of 0 nobody moves the weights that both train. The windows come in
      // another order.
      EXPECT_NEAR(trainer->step().ce, own.ce, 1e-7 * own.ce);
    }
  }
}

TEST(Trainer, PassesOfAnotherSizeAreTheSameStep) {
  Recipe recipe = still_recipe();
  recipe.accumulation = 2;
  recipe.compute = ComputeType::bf16;
  const auto trainer = trainer_of(test::tiny_config(), recipe);
  const StepResult own = trainer->step();
  for (const std::int64_t windows : {8, 1, 2}) {
    trainer->set_micro_batch(windows);
    EXPECT_EQ(trainer->recipe().accumulation, 8 / windows);
    const StepResult other = trainer->step();
    EXPECT_NEAR(other.ce, own.ce, 0x1p-8 * own.ce);
    EXPECT_NEAR(other.grad_norm, own.grad_norm, 0x1p-6 * own.grad_norm);
  }
  EXPECT_THAT(test::message_of([&] { trainer->set_micro_batch(3); }),
              HasSubstr("8 windows on 1 processes has no passes of 3"));
}

TEST(CompareSteps, HasAllSidesAndTellsWhatItDid) {
  Recipe recipe = still_recipe();
  recipe.accumulation = 2;
  const auto trainer = trainer_of(test::tiny_config(), recipe);
  EagerTraining eager(*trainer, one_step(recipe));
  for (const bool fit : {false, true}) {
    for (EagerTraining* beside : {&eager, static_cast<EagerTraining*>(nullptr)}) {
      const StepOptions options{.repeats = 2, .fit = fit};
      std::int64_t told = 0;
      const StepComparison result =
          compare_steps(*trainer, beside, options, [&told](const std::string&) { ++told; });
      EXPECT_EQ(told, ticks(options, beside != nullptr));
      const auto sides = result.sides();
      ASSERT_EQ(sides.size(), beside != nullptr ? 3U : 2U);
      for (const StepSide* side : sides) {
        EXPECT_EQ(side->seconds.size(), 2U);
        EXPECT_EQ(8 % side->micro_batch, 0);
        EXPECT_GT(result.over_sparse(*side), 0);
      }
      const nlohmann::json json = result.to_json();
      EXPECT_EQ(json["sides"].size(), sides.size());
      EXPECT_EQ(json["speedup_eager"].is_null(), beside == nullptr);
      EXPECT_EQ(json["sides"][0]["name"], "sparse");
      EXPECT_GT(json["nnz_mean"].get<double>(), 0);
    }
  }
}

}  // namespace
}  // namespace twell::lm
