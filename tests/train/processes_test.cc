// Started by mpirun as two processes; every test runs on both at once.
#include "train/processes.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <numeric>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/scratch.h"
#include "tests/train/tiny_run.h"

namespace twell::lm {
namespace {

using test::contains;
using test::message_of;
using test::Scratch;
using test::tiny_config;
using test::tiny_recipe;
using test::tiny_trainer;
using test::with_revivals;

const Processes& both() {
  static const Processes processes = Processes::started();
  return processes;
}

Recipe two_passes() {
  Recipe recipe = tiny_recipe();
  recipe.accumulation = 2;
  // AdamW divides a gradient by its size: where that is a rounding, the step is anything up to lr.
  recipe.eps = 1e-3;
  return recipe;
}

TEST(ProcessesTest, AreTwo) {
  ASSERT_EQ(both().count(), 2);
  EXPECT_EQ(both().first(), both().rank() == 0);
  EXPECT_EQ(both().of_first(both().rank()), 0);
}

TEST(ProcessesTest, SumsAndMaximaReachBoth) {
  const auto rank = both().rank();
  // Longer than any message that MPI sends at once.
  std::vector<float> values(1 << 20);
  std::iota(values.begin(), values.end(), static_cast<float>(rank));
  both().sum(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], 2.0F * static_cast<float>(i) + 1.0F);
  }
  double real = 0.25 + static_cast<double>(rank);
  both().sum({&real, 1});
  EXPECT_EQ(real, 1.5);
  std::int64_t counts[] = {rank, 3, -rank};
  both().maximum(counts);
  EXPECT_EQ(counts[0], 1);
  EXPECT_EQ(counts[1], 3);
  EXPECT_EQ(counts[2], 0);
  both().sum(counts);
  EXPECT_EQ(counts[0], 2);
}

// The order of sums is all that differs: by a rounding of 2^-24, and here and there of a bf16
// weight by 2^-9. Twelve steps grow such differences less than a hundredfold, and in bf16 not at
// all: those of single weights do not add up.
TEST(ProcessesTest, TrainWhatOneProcessTrains) {
  Recipe half = two_passes();
  half.compute = ComputeType::bf16;
  for (const Recipe& recipe : {two_passes(), with_revivals(two_passes()), half}) {
    const double tolerance = recipe.compute == ComputeType::fp32 ? 1e-5 : 2e-3;
    const auto alone = tiny_trainer(recipe), together = tiny_trainer(recipe, both());
    std::int64_t revived = 0;
    for (int i = 0; i < 12; ++i) {
      const StepResult a = alone->step(), b = together->step();
      EXPECT_NEAR(a.ce, b.ce, tolerance * a.ce) << i;
      EXPECT_NEAR(a.l1, b.l1, tolerance * a.l1) << i;
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 10 * tolerance * a.grad_norm) << i;
      EXPECT_EQ(a.lr, b.lr);
      EXPECT_EQ(a.revived, b.revived) << i;
      revived += b.revived;
      EXPECT_EQ(both().of_first(b.ce), b.ce);
      EXPECT_EQ(both().of_first(b.grad_norm), b.grad_norm);
    }
    EXPECT_EQ(revived > 0, recipe.reinit_every > 0);
    EXPECT_NEAR(*alone->validation_loss(), *together->validation_loss(), 10 * tolerance);
    const auto a = alone->activity(), b = together->activity();
    for (std::size_t layer = 0; layer < a.size(); ++layer) {
      // Of 1536 tokens; a few activations lie near zero.
      EXPECT_NEAR(a[layer].nnz_mean, b[layer].nnz_mean, 0.05 * a[layer].nnz_mean + 0.1);
      EXPECT_NEAR(a[layer].l1, b[layer].l1, 0.05 * a[layer].l1);
      EXPECT_EQ(a[layer].first_nnz.size(), b[layer].first_nnz.size());
    }
    EXPECT_EQ(message_of([&] { together->check_processes(); }), "");
  }
}

TEST(ProcessesTest, ACheckpointContinuesOnAnyNumberOfThem) {
  const Scratch own;
  const Recipe recipe = with_revivals(two_passes());
  const auto first = tiny_trainer(recipe, both());
  for (int i = 0; i < 4; ++i) first->step();
  // Each its own copy of what only the first would write.
  first->save(own.path() / "step", nullptr);
  const auto same = tiny_trainer(recipe, both()), alone = tiny_trainer(recipe);
  same->load(own.path() / "step");
  alone->load(own.path() / "step");
  for (int i = 0; i < 3; ++i) {
    const StepResult wanted = first->step(), got = same->step(), near = alone->step();
    EXPECT_EQ(wanted.ce, got.ce);
    EXPECT_EQ(wanted.grad_norm, got.grad_norm);
    EXPECT_NEAR(wanted.ce, near.ce, 1e-5 * wanted.ce);
  }
  const NamedTensors a = first->model().parameters(), b = same->model().parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
  }
}

TEST(ProcessesTest, WeightsThatDriftedApartAreAnError) {
  const auto trainer = tiny_trainer(two_passes(), both());
  trainer->step();
  EXPECT_EQ(message_of([&] { trainer->check_processes(); }), "");
  if (!both().first()) {
    const at::NoGradGuard no_grad;
    at::Tensor weight = trainer->model().ffn_parameters(1).down;
    weight[3][4].mul_(1.0000002);
  }
  const std::string message = message_of([&] { trainer->check_processes(); });
  EXPECT_TRUE(contains(message, "down_proj.weight is not the same on processes 0 and 1"))
      << message;
}

TEST(ProcessesTest, EveryOneNeedsAPass) {
  Recipe recipe = two_passes();
  recipe.accumulation = 3;
  EXPECT_TRUE(contains(message_of([&] { tiny_trainer(recipe, both()); }),
                       "2 processes need a multiple of 2, got 3"));
}

// What is not finite on one process ends the step on all.
TEST(ProcessesTest, ABrokenLossIsBrokenForBoth) {
  const auto trainer = tiny_trainer(two_passes(), both());
  if (!both().first()) {
    const at::NoGradGuard no_grad;
    trainer->model().ffn_parameters(0).down.fill_(std::numeric_limits<float>::infinity());
  }
  EXPECT_TRUE(contains(message_of([&] { trainer->step(); }), "is not finite"));
  EXPECT_EQ(trainer->steps_done(), 0);
}

}  // namespace
}  // namespace twell::lm
