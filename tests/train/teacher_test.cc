#include "train/teacher.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>

#include "tests/support/message_of.h"
#include "tests/train/scratch.h"
#include "tests/train/tiny_run.h"
#include "train/schedule.h"
#include "train/trainer.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::contains;
using test::message_of;
using test::Scratch;
using test::tiny_config;
using test::tiny_data;
using test::tiny_recipe;

io::ModelConfig dense_config() {
  io::ModelConfig config = tiny_config();
  config.hidden_act = io::HiddenAct::silu;
  return config;
}
// Larger weights than those that training begins with: the activation then counts for something.
std::unique_ptr<Model> make(const io::ModelConfig& config, std::uint64_t seed = 3,
                            at::ScalarType dtype = at::kFloat) {
  auto model = make_model(config, dtype, seed);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model->parameters()) {
    if (tensor.dim() == 2) at::Tensor(tensor).mul_(4);
  }
  return model;
}
Recipe taught_recipe() {
  Recipe recipe = tiny_recipe();
  recipe.teacher = "somewhere";
  recipe.l1 = 0.0;
  return recipe;
}
std::unique_ptr<Trainer> taught(const Recipe& recipe,
                                const io::ModelConfig& student = tiny_config(),
                                const io::ModelConfig& teacher = dense_config()) {
  const auto dtype = recipe.compute == ComputeType::bf16 ? at::kBFloat16 : at::kFloat;
  return std::make_unique<Trainer>(make(student), recipe, tiny_data(), Processes{}, nullptr,
                                   make(teacher, 3, dtype));
}

TEST(DivergenceTest, ValueAndGradientAreThoseOfTheDefinition) {
  at::manual_seed(1);
  for (const double t : {1.0, 2.5}) {
    const at::Tensor wanted = 3 * at::randn({7, 33});
    const at::Tensor logits = (wanted + at::randn({7, 33})).requires_grad_(true);
    const at::Tensor p = at::log_softmax(logits.to(at::kDouble) / t, 1);
    const at::Tensor q = at::log_softmax(wanted.to(at::kDouble) / t, 1);
    const at::Tensor definition = t * t * (q.exp() * (q - p)).sum();
    definition.backward();
    const at::Tensor sum = at::ones({}, at::kDouble);
    const at::Tensor gradient = divergence(logits, wanted, t, sum);
    // Values are below 16 in size: log_softmax is off by some roundings of that, in 231 places.
    EXPECT_NEAR(sum.item<double>() - 1, definition.item<double>(), 16 * 231 * 0x1p-23 * t * t);
    EXPECT_LT((gradient - logits.grad()).abs().max().item<double>(), 1e-5);
  }
}

TEST(TeacherTest, PullsTowardsItsOwnStates) {
  Recipe recipe = taught_recipe();
  recipe.hidden_weight = 0.7;
  const auto student = make(tiny_config());
  const auto same = make(dense_config());
  Teacher teacher(make(dense_config()), *student, recipe);
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(64, {4, 16});
  teacher.read(tokens);
  const at::NoGradGuard no_grad;
  const at::Tensor states[] = {
      same->block(0, same->embed(tokens)).clone(),
      same->final_norm(same->block(1, same->block(0, same->embed(tokens))))};
  double expected = 0.0;
  for (const std::int64_t state : {0, 1}) {
    const at::AutoGradMode on(true);
    const at::Tensor& t = states[state];
    const at::Tensor x = (t + 0.1 * at::randn(t.sizes())).detach().requires_grad_(true);
    const at::Tensor share = (x - t).square().sum(-1) / t.square().sum(-1);
    // Two layers, 64 tokens in the step's one pass.
    const at::Tensor mean = share.sum() / (2 * 64);
    expected += mean.item<double>();
    const at::Tensor weights = at::randn(t.sizes());
    ((x * weights).sum() + 0.7 * mean).backward();
    const at::Tensor wanted = x.grad().clone();
    x.mutable_grad().reset();
    (teacher.pull(state, x) * weights).sum().backward();
    EXPECT_LT((x.grad() - wanted).abs().max().item<double>(), 1e-5);
    EXPECT_TRUE(at::equal(teacher.pull(state, t.clone().requires_grad_(true)), t));
  }
  EXPECT_NEAR(teacher.take_hidden_error(), expected, 1e-6);
  EXPECT_EQ(teacher.take_hidden_error(), 0.0);
  EXPECT_LT((teacher.logits(5, 3) - same->head(states[1].flatten(0, 1).narrow(0, 5, 3)))
                .abs()
                .max()
                .item<double>(),
            1e-5);
}

TEST(TeacherTest, OfOnesOwnOutputsThereIsNothingToLearn) {
  const auto trainer = taught(taught_recipe(), dense_config());
  const StepResult step = trainer->step();
  EXPECT_NEAR(step.divergence, 0.0, 1e-6);
  EXPECT_NEAR(step.hidden_error, 0.0, 1e-6);
  EXPECT_GT(step.ce, 1.0);
  EXPECT_EQ(step.loss, step.divergence + step.hidden_error);
  EXPECT_LT(step.grad_norm, 1e-3);
}

TEST(TeacherTest, AModelWithReluComesNearIt) {
  for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
    Recipe recipe = taught_recipe();
    recipe.compute = compute;
    recipe.steps = 40;
    const auto trainer = taught(recipe);
    const StepResult first = trainer->step();
    StepResult last;
    while (trainer->steps_done() < 40) last = trainer->step();
    EXPECT_GT(first.divergence, 0.01);
    EXPECT_LT(last.divergence, 0.5 * first.divergence) << name_of(compute);
    EXPECT_LT(last.hidden_error, 0.8 * first.hidden_error) << name_of(compute);
    EXPECT_TRUE(trainer->validation_loss().has_value());
  }
}

// The same step: all at once, blocks computed twice, in two passes, with the logits alone.
TEST(TeacherTest, EveryWayOfComputingAStepIsTheSame) {
  Recipe whole = taught_recipe();
  whole.l1 = 1e-3;
  whole.temperature = 1.5;
  whole.hidden_weight = 0.5;
  const StepResult expected = taught(whole)->step();
  EXPECT_NEAR(expected.loss, expected.divergence + 0.5 * expected.hidden_error + expected.l1, 1e-9);
  Recipe twice = whole;
  twice.recompute = true;
  Recipe in_passes = whole;
  in_passes.micro_batch = 2;
  in_passes.accumulation = 2;
  for (const Recipe& recipe : {twice, in_passes}) {
    const StepResult step = taught(recipe)->step();
    EXPECT_NEAR(step.divergence, expected.divergence, 1e-6);
    EXPECT_NEAR(step.hidden_error, expected.hidden_error, 1e-6);
    EXPECT_NEAR(step.grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm);
  }
  Recipe logits = whole;
  logits.hidden_weight = 0.0;
  const StepResult step = taught(logits)->step();
  EXPECT_NEAR(step.divergence, expected.divergence, 1e-6);
  EXPECT_EQ(step.hidden_error, 0.0);
}

TEST(TeacherTest, StoppedOnThePathAndResumed) {
  Recipe recipe = taught_recipe();
  recipe.anneal_steps = 12;
  recipe.anneal_from = "silu";
  const Scratch scratch;
  const auto whole = taught(recipe), first = taught(recipe);
  std::vector<StepResult> expected;
  for (int i = 0; i < 16; ++i) expected.push_back(whole->step());
  for (int i = 0; i < 8; ++i) first->step();
  first->save(scratch.path() / "saved", nullptr);
  const auto second = taught(recipe);
  second->load(scratch.path() / "saved");
  for (std::size_t i = 8; i < 16; ++i) {
    const StepResult step = second->step();
    EXPECT_EQ(step.divergence, expected[i].divergence);
    EXPECT_EQ(step.hidden_error, expected[i].hidden_error);
    EXPECT_EQ(step.grad_norm, expected[i].grad_norm);
  }
}

TEST(AnnealingTest, BeginsAsTheOldModelAndEndsSparse) {
  Recipe recipe = taught_recipe();
  recipe.anneal_steps = 4;
  recipe.anneal_from = "silu";
  const auto trainer = taught(recipe);
  // A quarter of the way; at once it would be 0.01 and more.
  const StepResult first = trainer->step();
  EXPECT_LT(first.divergence, 0.25 * taught(taught_recipe())->step().divergence);
  EXPECT_EQ(trainer->sparse_layers(), 0);
  // Values below 0 pass: all neurons fire.
  EXPECT_EQ(trainer->activity().front().nnz_mean, 96);
  for (int i = 0; i < 3; ++i) trainer->step();
  EXPECT_EQ(trainer->sparse_layers(), 2);
  trainer->reset_activity();
  trainer->step();
  EXPECT_LT(trainer->activity().front().nnz_mean, 80);
}

TEST(AnnealingTest, ShareByStep) {
  Recipe recipe = tiny_recipe();
  EXPECT_EQ(annealed_share(recipe, 0), 1.0);
  recipe.anneal_steps = 4;
  EXPECT_EQ(annealed_share(recipe, 0), 0.25);
  EXPECT_EQ(annealed_share(recipe, 2), 0.75);
  EXPECT_EQ(annealed_share(recipe, 3), 1.0);
  EXPECT_EQ(annealed_share(recipe, 19), 1.0);
  recipe.shortened_to = 10;  // of 20
  EXPECT_EQ(annealed_share(recipe, 0), 0.5);
}

TEST(TeacherTest, ThatDoesNotFitIsRefused) {
  const auto message = [](auto change, Recipe recipe = taught_recipe()) {
    io::ModelConfig config = dense_config();
    change(config);
    return message_of([&] { taught(recipe, tiny_config(), config); });
  };
  EXPECT_TRUE(contains(message([](auto& c) { c.vocab_size = 65; }),
                       "teacher: vocab_size: expected 64 as in the model, got 65"));
  EXPECT_TRUE(contains(message([](auto& c) { c.num_hidden_layers = 3; }),
                       "num_hidden_layers: expected 2 as in the model, got 3"));
  EXPECT_TRUE(contains(message([](auto& c) { c.hidden_size = 48; }),
                       "hidden_size: expected 32 as in the model, got 48"));
  EXPECT_TRUE(contains(message([](auto& c) { c.max_position_embeddings = 8; }),
                       "context: it has 8 positions, got 16"));
  Recipe logits = taught_recipe();
  logits.hidden_weight = 0.0;
  EXPECT_EQ(message([](auto& c) { c.hidden_size = 48; }, logits), "");
  EXPECT_TRUE(
      contains(message_of([] { Trainer(make(tiny_config()), taught_recipe(), tiny_data()); }),
               "have to be given together"));
}

}  // namespace
}  // namespace twell::lm
