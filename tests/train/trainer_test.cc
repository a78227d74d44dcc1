#include "train/trainer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>

#include "checkpoint/checkpoint.h"
#include "files/atomic_file.h"
#include "tests/support/message_of.h"
#include "tests/support/scratch.h"
#include "tests/support/slow_runtime.h"
#include "tests/train/tiny_run.h"
#include "train/schedule.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::contains;
using test::message_of;
using test::Scratch;
using test::tiny_config;
using test::tiny_recipe;
using test::tiny_trainer;
using test::with_biases;
using test::with_revivals;
using test::with_threshold;

const io::ModelConfig kModels[] = {tiny_config(), with_biases(tiny_config()),
                                   with_threshold(tiny_config(), 0.01)};

void expect_same_bits(const StepResult& a, const StepResult& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.ce, b.ce);
  EXPECT_EQ(a.l1, b.l1);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.l1_coefficient, b.l1_coefficient);
  EXPECT_EQ(a.revived, b.revived);
}

void expect_same_weights(Trainer& a, Trainer& b) {
  const NamedTensors left = a.model().parameters(), right = b.model().parameters();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first;
  }
}

// What a file of a checkpoint says of a tensor.
template <class T>
std::vector<T> saved_values(const std::filesystem::path& saved, const std::string& name,
                            const std::vector<std::int64_t>& shape,
                            const char* path = "trainer/optimizer.safetensors") {
  const io::Checkpoint file(saved / path);
  const auto tensor = file.expect(name, shape);
  std::vector<T> out(tensor.info->bytes() / sizeof(T));
  std::memcpy(out.data(), tensor.data, tensor.info->bytes());
  return out;
}

// A GPU that finds every layer worth training sparsely; on CPU tensors, whose operators ignore hot
// neurons.
std::unique_ptr<test::SlowRuntime> played_gpu() {
  auto gpu = std::make_unique<test::SlowRuntime>();
  gpu->training = [](const FfnShape&, std::int64_t rows, const std::vector<double>& rates) {
    EXPECT_EQ(rows, 4 * 16);
    EXPECT_TRUE(std::is_sorted(rates.rbegin(), rates.rend()));
    return TrainingChoice{true, 32};
  };
  return gpu;
}
std::unique_ptr<Trainer> gpu_trainer(const Recipe& recipe, DeviceRuntime& gpu,
                                     const io::ModelConfig& config = tiny_config()) {
  return tiny_trainer(recipe, {}, &gpu, config);
}

void expect_resumed(const Recipe& recipe, const io::ModelConfig& config) {
  const Scratch scratch;
  const auto make = [&] { return tiny_trainer(recipe, {}, nullptr, config); };
  const auto whole = make(), first = make();
  EXPECT_EQ(whole->sparse_layers(), 2);
  std::vector<StepResult> expected;
  std::int64_t revived[2] = {};
  for (int i = 0; i < 20; ++i) {
    expected.push_back(whole->step());
    revived[i / 10] += expected.back().revived;
  }
  EXPECT_GT(revived[0], 0);
  EXPECT_GT(revived[1], 0);
  for (int i = 0; i < 10; ++i)
    expect_same_bits(first->step(), expected[static_cast<std::size_t>(i)]);
  first->save(scratch.path() / "saved", nullptr);
  const auto second = make();
  second->load(scratch.path() / "saved");
  EXPECT_EQ(second->steps_done(), 10);
  for (int i = 10; i < 20; ++i) {
    expect_same_bits(second->step(), expected[static_cast<std::size_t>(i)]);
  }
  expect_same_weights(*whole, *second);
  EXPECT_EQ(whole->validation_loss(), second->validation_loss());
}

TEST(TrainerTest, TwentyStepsAreTenAndTenResumed) {
  for (const io::ModelConfig& config : kModels) {
    for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
      for (const bool recompute : {false, true}) {
        Recipe recipe = with_revivals(tiny_recipe());  // on both sides of the stop
        recipe.compute = compute;
        recipe.recompute = recompute;
        recipe.accumulation = 2;
        expect_resumed(recipe, config);
      }
    }
  }
}

// The order is made after steps 1 and 33: a stop before and behind the second.
TEST(TrainerTest, OnAGpuTheOrderOfNeuronsIsResumed) {
  const auto gpu = played_gpu();
  for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
    Recipe recipe = with_revivals(tiny_recipe());
    recipe.compute = compute;
    recipe.accumulation = 2;
    recipe.steps = 40;
    const auto whole = gpu_trainer(recipe, *gpu);
    EXPECT_EQ(whole->sparse_layers(), 0);
    std::vector<StepResult> expected;
    for (int i = 0; i < 40; ++i) expected.push_back(whole->step());
    EXPECT_EQ(whole->sparse_layers(), 2);
    for (const std::size_t stop : {20, 35}) {
      const Scratch scratch;
      const auto first = gpu_trainer(recipe, *gpu);
      for (std::size_t i = 0; i < stop; ++i) expect_same_bits(first->step(), expected[i]);
      first->save(scratch.path() / "saved", nullptr);
      const auto second = gpu_trainer(recipe, *gpu);
      second->load(scratch.path() / "saved");
      EXPECT_EQ(second->sparse_layers(), 2);
      for (std::size_t i = stop; i < 40; ++i) expect_same_bits(second->step(), expected[i]);
      expect_same_weights(*whole, *second);
    }
  }
}

// Files have the model's own order, so that a CPU, or another library, goes on from them.
void expect_saved_in_the_models_order(const Recipe& recipe, const io::ModelConfig& config) {
  const auto gpu = played_gpu();
  const Scratch scratch;
  const auto saved = scratch.path() / "saved";
  const auto trainer = gpu_trainer(recipe, *gpu, config),
             on_cpu = tiny_trainer(recipe, {}, nullptr, config);
  trainer->step();
  trainer->save(saved, nullptr);
  const auto orders = saved_values<std::int64_t>(saved, "neuron_order", {2, 96});
  on_cpu->load(saved);
  const NamedTensors placed = trainer->model().parameters(), models = on_cpu->model().parameters();
  int moved = 0;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const auto& [name, tensor] = placed[i];
    at::Tensor expected = models[i].second;
    if (contains(name, ".mlp.") && !contains(name, "down_proj.bias")) {
      const std::int64_t layer = contains(name, "layers.1.") ? 1 : 0;
      const at::Tensor order = at::tensor(orders, at::kLong).view({2, 96})[layer];
      expected = expected.index_select(contains(name, "down_proj") ? 1 : 0, order);
      moved += static_cast<int>(!at::equal(expected, models[i].second));
    }
    EXPECT_TRUE(at::equal(tensor, expected)) << name;
  }
  EXPECT_EQ(moved, config.mlp_bias ? 10 : 6) << "three weights, two biases of two layers";
  if (recipe.compute == ComputeType::bf16) return;
  // The same sums in another order, of at most 96 terms in a layer.
  const double loss = *on_cpu->validation_loss();
  EXPECT_NEAR(*trainer->validation_loss(), loss, loss * std::ldexp(96.0, -24));
}

TEST(TrainerTest, WhatAGpuSavedIsTheModelsOrder) {
  for (const io::ModelConfig& config : kModels) {
    for (const auto compute : {ComputeType::bf16, ComputeType::fp32}) {
      Recipe recipe = tiny_recipe();
      recipe.compute = compute;
      expect_saved_in_the_models_order(recipe, config);
    }
  }
}

TEST(TrainerTest, RefusesADamagedOrderOfNeurons) {
  const auto gpu = played_gpu();
  const Scratch scratch;
  const auto saved = scratch.path() / "saved";
  const auto trainer = gpu_trainer(tiny_recipe(), *gpu);
  trainer->step();
  trainer->save(saved, nullptr);
  const auto orders = saved_values<std::int64_t>(saved, "neuron_order", {2, 96});
  std::fstream file(saved / "trainer" / "optimizer.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string_view order(reinterpret_cast<const char*>(orders.data()), 2 * 96 * 8);
  const std::size_t at = bytes.find(order);
  ASSERT_NE(at, std::string::npos);
  file.seekp(static_cast<std::streamoff>(at));
  file.write("\x60", 1);  // 96, of 0 to 95
  file.close();
  const auto next = gpu_trainer(tiny_recipe(), *gpu);
  EXPECT_TRUE(contains(message_of([&] { next->load(saved); }),
                       "neuron_order: expected every neuron of a layer once"));
}

TEST(TrainerTest, SavedModelComputesWhatTheTrainerDoes) {
  for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
    const Scratch scratch;
    Recipe recipe = tiny_recipe();
    recipe.compute = compute;
    const auto trainer = tiny_trainer(recipe);
    for (int i = 0; i < 5; ++i) trainer->step();
    trainer->save(scratch.path() / "model", nullptr);
    LoadOptions options;
    options.path = FfnPath::dense;
    const auto model = load_model((scratch.path() / "model").string(), options);
    EXPECT_EQ(model->dtype(), compute == ComputeType::bf16 ? at::kBFloat16 : at::kFloat);
    const NamedTensors saved = model->parameters(), held = trainer->model().parameters();
    ASSERT_EQ(saved.size(), held.size());
    for (std::size_t i = 0; i < saved.size(); ++i) {
      EXPECT_TRUE(at::equal(saved[i].second, held[i].second)) << saved[i].first;
    }
  }
}

TEST(TrainerTest, LossFallsAndFiringBecomesRare) {
  Recipe recipe = tiny_recipe();
  recipe.steps = 150;
  recipe.peak_lr = 1e-2;
  recipe.l1 = 0.5;
  const auto trainer = tiny_trainer(recipe);
  const double first = trainer->step().ce;
  // Uniform over 64 ids at the start.
  EXPECT_NEAR(first, std::log(64.0), 0.05);
  const double nnz_first = trainer->activity().front().nnz_mean;
  for (int i = 1; i < 149; ++i) trainer->step();
  trainer->reset_activity();
  const double last = trainer->step().ce;
  // The text's entropy is 0.2 ln 64 + H(0.2) = 1.33.
  EXPECT_LT(last, 2.2);
  EXPECT_GT(last, 1.2);
  EXPECT_LT(trainer->activity().front().nnz_mean, 0.3 * nnz_first);
  EXPECT_LT(*trainer->validation_loss(), 2.4);
}

// A strong penalty silences neurons. Their rows are drawn anew, without a bias or a past in the
// optimizer, and most of them fire in the next step.
void expect_revived_neurons_fire(DeviceRuntime* runtime, const io::ModelConfig& config) {
  constexpr std::int64_t kWidth = 32, kUnits = 96;
  const Scratch scratch;
  Recipe recipe = with_revivals(tiny_recipe());
  recipe.l1_warmup = 0;
  recipe.reinit_every = 10;
  const auto trainer = tiny_trainer(recipe, {}, runtime, config);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(trainer->step().revived, 0);
  const std::int64_t revived = trainer->step().revived;
  EXPECT_GE(revived, 10);
  trainer->save(scratch.path() / "revived", nullptr);
  trainer->step();
  trainer->save(scratch.path() / "next", nullptr);
  const auto fired = saved_values<std::int64_t>(scratch.path() / "next", "last_fired", {2, kUnits});
  const auto before =
      saved_values<std::int64_t>(scratch.path() / "revived", "last_fired", {2, kUnits});
  std::int64_t empty = 0, alive = 0;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const std::string gate = fmt::format("model.layers.{}.mlp.gate_proj.", layer);
    const auto saved = scratch.path() / "revived";
    const auto m = saved_values<float>(saved, "m." + gate + "weight", {kUnits, kWidth});
    const auto v = saved_values<float>(saved, "v." + gate + "weight", {kUnits, kWidth});
    std::vector<std::vector<float>> of_bias;
    if (config.mlp_bias) {
      of_bias = {saved_values<float>(saved, gate + "bias", {kUnits}, "model.safetensors"),
                 saved_values<float>(saved, "m." + gate + "bias", {kUnits}),
                 saved_values<float>(saved, "v." + gate + "bias", {kUnits})};
    }
    const auto is_empty = [](const std::vector<float>& values, std::int64_t row) {
      const auto begin = values.begin() + row * kWidth;
      return std::all_of(begin, begin + kWidth, [](float value) { return value == 0.0F; });
    };
    for (std::int64_t row = 0; row < kUnits; ++row) {
      EXPECT_EQ(is_empty(m, row), is_empty(v, row));
      if (!is_empty(m, row)) continue;
      ++empty;
      for (const auto& values : of_bias) EXPECT_EQ(values[static_cast<std::size_t>(row)], 0.0F);
      const auto neuron = static_cast<std::size_t>(layer * kUnits + row);
      EXPECT_LT(before[neuron], 10 - recipe.dead_window) << "was dead";
      alive += fired[neuron] == 10;
    }
  }
  EXPECT_EQ(empty, revived);
  // A new row's product with an input is positive as often as not. At worst the inputs are all
  // alike, and half of the rows are positive for none of them; here, fewer.
  EXPECT_GE(alive, revived / 2);
}

TEST(TrainerTest, RevivedNeuronsFireAgain) {
  for (const io::ModelConfig& config : kModels) expect_revived_neurons_fire(nullptr, config);
}
TEST(TrainerTest, OnAGpuRevivedNeuronsFireAgain) {
  for (const io::ModelConfig& config : kModels) {
    expect_revived_neurons_fire(played_gpu().get(), config);
  }
}

// Against autograd through all logits at once, and dense layers: a text of four windows is the
// batch, in any order.
TEST(TrainerTest, LossAndGradientAreThoseOfTheMeanCrossEntropy) {
  Recipe recipe = tiny_recipe();
  recipe.l1 = 0.0;
  TrainingData data = test::tiny_data();
  std::vector<std::int64_t> ids(4 * 16 + 1);
  data.tokens.read(0, ids);
  data.tokens = TokenStream(std::vector<std::int32_t>(ids.begin(), ids.end()));
  recipe.validation_fraction = 0.0;
  const at::Tensor stream = at::tensor(ids, at::kLong);
  const at::Tensor tokens = stream.narrow(0, 0, 64).view({4, 16});
  for (const io::ModelConfig& config : kModels) {
    const auto made = [&] {
      auto model = make_model(config, at::kFloat, recipe.seed);
      Random random(3);
      const torch::NoGradGuard no_grad;
      for (const auto& [name, bias] : model->parameters()) {
        if (!contains(name, ".mlp.") || bias.dim() != 1) continue;
        for (std::int64_t i = 0; i < bias.size(0); ++i) bias[i] = 0.1 * random.normal();
      }
      return model;
    };
    const auto model = made();
    at::Tensor x = model->embed(tokens);
    for (std::int64_t layer = 0; layer < model->layers(); ++layer) x = model->block(layer, x);
    const at::Tensor logits = model->head(model->final_norm(x).flatten(0, 1));
    const at::Tensor loss = at::cross_entropy_loss(logits, stream.narrow(0, 1, 64));
    loss.backward();
    double squares = 0.0;
    for (const auto& [name, parameter] : model->parameters()) {
      squares += parameter.grad().square().sum(at::kDouble).item<double>();
    }
    Trainer trainer(made(), recipe, data);
    EXPECT_EQ(trainer.sparse_layers(), 2);
    const StepResult result = trainer.step();
    // The same sums in another order, of 96 neurons, 64 entries, 64 tokens.
    const double relative = std::ldexp(96.0, -24);
    EXPECT_NEAR(result.ce, loss.item<double>(), result.ce * relative);
    EXPECT_NEAR(result.grad_norm, std::sqrt(squares), result.grad_norm * 4 * relative);
  }
}

TEST(TrainerTest, AccumulationIsOneLargerBatch) {
  Recipe large = tiny_recipe(), small = tiny_recipe();
  large.micro_batch = 8;
  small.accumulation = 2;
  const StepResult a = tiny_trainer(large)->step(), b = tiny_trainer(small)->step();
  // The same sums in another order: fp32 over 128 tokens, relative 128 * 2^-24.
  const double relative = std::ldexp(128.0, -24);
  EXPECT_NEAR(a.ce, b.ce, a.ce * relative);
  EXPECT_NEAR(a.l1, b.l1, a.l1 * relative);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, a.grad_norm * 4 * relative);
}

// Its gradient too, however a step is cut into passes, and where it begins in one epoch and ends in
// the next: windows are all of one length, so that every token weighs the same.
TEST(TrainerTest, L1TermIsTheMeanOverAllTokensOfAStep) {
  Recipe recipe = tiny_recipe();
  recipe.l1 = 1e4;  // dwarfs the cross entropy
  recipe.l1_warmup = 0;
  recipe.peak_lr = 1e-6;
  recipe.validation_fraction = 0.0;
  std::vector<std::int64_t> ids(11 * 16 + 1);
  test::tiny_data().tokens.read(0, ids);
  const TrainingData data = {TokenStream(std::vector<std::int32_t>(ids.begin(), ids.end())), 5};
  std::vector<StepResult> wanted;
  for (const std::int64_t passes : {1, 2, 8}) {
    recipe.micro_batch = 8 / passes;
    recipe.accumulation = passes;
    Trainer trainer(make_model(tiny_config(), at::kFloat, recipe.seed), recipe, data);
    for (std::size_t step = 0; step < 2; ++step) {  // the second has windows 8 to 15 of 11
      const StepResult result = trainer.step();
      if (passes == 1) wanted.push_back(result);
      const double relative = std::ldexp(128.0, -24);
      EXPECT_NEAR(result.l1, wanted[step].l1, wanted[step].l1 * relative) << passes;
      EXPECT_NEAR(result.grad_norm, wanted[step].grad_norm, result.grad_norm * 4 * relative);
    }
  }
}

TEST(TrainerTest, RecomputationGivesTheSameGradient) {
  Recipe recipe = tiny_recipe();
  const StepResult plain = tiny_trainer(recipe)->step();
  recipe.recompute = true;
  const StepResult again = tiny_trainer(recipe)->step();
  // PyTorch chooses other kernels where no gradient is wanted: the same sums in another order, of
  // at most 96 terms in a layer.
  const double relative = std::ldexp(96.0, -24);
  EXPECT_NEAR(plain.ce, again.ce, plain.ce * relative);
  EXPECT_NEAR(plain.l1, again.l1, plain.l1 * relative);
  EXPECT_NEAR(plain.grad_norm, again.grad_norm, plain.grad_norm * 4 * relative);
}

TEST(TrainerTest, L1TermHasTheDocumentedMean) {
  Recipe recipe = tiny_recipe();
  recipe.accumulation = 2;
  const auto trainer = tiny_trainer(recipe);
  const StepResult result = trainer->step();
  double mean = 0.0;
  for (const LayerActivity& layer : trainer->activity()) mean += layer.l1 / 2;
  EXPECT_GT(mean, 0.0);
  EXPECT_NEAR(result.l1, mean * l1_coefficient(recipe, 0), result.l1 * 1e-14);
  EXPECT_EQ(result.loss, result.ce + result.l1);
}

// The gradient's direction and scale: with a coefficient that dwarfs the cross entropy, one small
// step changes the L1 mean by -lr * |g|², g its gradient, which the gradient norm tells.
TEST(TrainerTest, L1GradientHasTheScaleOfTheTerm) {
  Recipe recipe = tiny_recipe();
  recipe.l1 = 1e4;
  recipe.l1_warmup = 0;
  const auto base = tiny_trainer(recipe);
  const double norm = base->step().grad_norm;
  // The same batch again after moving every weight along the numerical direction is not to be had
  // from outside, so the scale is checked by doubling: norm is linear in the coefficient.
  recipe.l1 = 2e4;
  const double twice = tiny_trainer(recipe)->step().grad_norm;
  EXPECT_NEAR(twice / norm, 2.0, 1e-3);
  recipe.l1 = 0.0;
  const double none = tiny_trainer(recipe)->step().grad_norm;
  EXPECT_LT(none, 0.1 * norm);
}

TEST(TrainerTest, StopsAtANonFiniteLossAndKeepsTheWeights) {
  const Scratch scratch;
  const auto trainer = tiny_trainer();
  trainer->step();
  trainer->save(scratch.path() / "good", nullptr);
  const at::Tensor weight = trainer->model().ffn_parameters(1).up;
  {
    const torch::NoGradGuard no_grad;
    weight[3][3] = std::numeric_limits<float>::quiet_NaN();
  }
  const at::Tensor before = trainer->model().parameters().front().second.detach().clone();
  const std::string message = message_of([&] { trainer->step(); });
  EXPECT_TRUE(contains(message, "step 2")) << message;
  EXPECT_TRUE(contains(message, "not finite")) << message;
  EXPECT_TRUE(at::equal(trainer->model().parameters().front().second, before));
  EXPECT_EQ(trainer->steps_done(), 1);
  // The checkpoint goes on as if nothing had happened.
  const auto healthy = tiny_trainer(), resumed = tiny_trainer();
  healthy->step();
  resumed->load(scratch.path() / "good");
  expect_same_bits(resumed->step(), healthy->step());
}

// Decay multiplies matrices by 1 - 0.1 · 1e3 = -99 a step: no fp32 holds them after 20 steps, so
// the run cannot stay finite, whatever the machine.
TEST(TrainerTest, AHugeLearningRateEndsInAnErrorNotInNaNWeights) {
  Recipe recipe = tiny_recipe();
  recipe.peak_lr = 1e3;
  recipe.weight_decay = 0.1;
  recipe.clip = 0.0;
  recipe.steps = 200;
  const auto trainer = tiny_trainer(recipe);
  const std::string message = message_of([&] {
    for (int i = 0; i < 30; ++i) trainer->step();
  });
  EXPECT_TRUE(contains(message, "learning rate")) << message;
  for (const auto& [name, tensor] : trainer->model().parameters()) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

TEST(TrainerTest, ShortensItsSchedulesInProportion) {
  Recipe recipe = tiny_recipe();
  recipe.steps = 1000;
  recipe.warmup_steps = 100;
  recipe.l1_warmup = 400;
  const auto trainer = tiny_trainer(recipe);
  trainer->set_length(250);
  EXPECT_EQ(trainer->recipe().length(), 250);
  EXPECT_EQ(trainer->recipe().scaled(recipe.warmup_steps), 25);
  EXPECT_EQ(trainer->recipe().scaled(recipe.l1_warmup), 100);
  trainer->set_length(500);  // more time than it seemed
  EXPECT_EQ(trainer->recipe().length(), 500);
  EXPECT_EQ(trainer->recipe().scaled(recipe.warmup_steps), 50);
  trainer->set_length(0);
  EXPECT_EQ(trainer->recipe().length(), 1);
  trainer->set_length(2000);
  EXPECT_EQ(trainer->recipe().length(), 1000);
}

TEST(TrainerTest, RefusesAnotherRunsCheckpoint) {
  const Scratch scratch;
  const auto trainer = tiny_trainer();
  trainer->step();
  const auto saved = scratch.path() / "saved";
  trainer->save(saved, nullptr);
  const auto message = [&](const Recipe& recipe, const io::ModelConfig& config,
                           const TrainingData& data) {
    Trainer other(make_model(config, at::kFloat, recipe.seed), recipe, data);
    const std::string out = message_of([&] { other.load(saved); });
    EXPECT_EQ(other.steps_done(), out.empty() ? 1 : 0);
    return out;
  };
  Recipe recipe = tiny_recipe();
  recipe.seed = 2;
  EXPECT_TRUE(contains(message(recipe, tiny_config(), test::tiny_data()), "seed"));
  recipe = tiny_recipe();
  recipe.micro_batch = 5;
  EXPECT_TRUE(contains(message(recipe, tiny_config(), test::tiny_data()), "micro_batch"));
  recipe = tiny_recipe();
  recipe.compute = ComputeType::bf16;
  EXPECT_TRUE(contains(message(recipe, tiny_config(), test::tiny_data()), "compute"));
  io::ModelConfig config = tiny_config();
  config.intermediate_size = 100;
  EXPECT_TRUE(contains(message(tiny_recipe(), config, test::tiny_data()), "config.json"));
  EXPECT_TRUE(contains(message(tiny_recipe(), tiny_config(), test::tiny_data(6)), "text"));
  EXPECT_EQ(message(tiny_recipe(), tiny_config(), test::tiny_data()), "");
}

TEST(TrainerTest, RefusesADamagedCheckpoint) {
  namespace fs = std::filesystem;
  for (const char* file : {"trainer/state.json", "trainer/optimizer.safetensors",
                           "model.safetensors", "config.json"}) {
    for (const bool remove : {true, false}) {
      const Scratch scratch;
      const auto trainer = tiny_trainer();
      trainer->step();
      const auto saved = scratch.path() / "saved";
      trainer->save(saved, nullptr);
      if (remove) {
        fs::remove(saved / file);
      } else {
        fs::resize_file(saved / file, fs::file_size(saved / file) / 2);
      }
      const auto other = tiny_trainer();
      const std::string message = message_of([&] { other->load(saved); });
      EXPECT_TRUE(contains(message, fs::path(file).filename().string())) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      expect_same_bits(other->step(), tiny_trainer()->step());
    }
  }
}

TEST(TrainerTest, RefusesAContextTheModelDoesNotHave) {
  Recipe recipe = tiny_recipe();
  recipe.context = 17;
  EXPECT_TRUE(contains(message_of([&] { tiny_trainer(recipe); }), "context"));
}

// A file-size limit stands in for the full disk: the write fails in the middle of a file.
TEST(TrainerTest, AFullDiskLeavesNothingBehind) {
  namespace fs = std::filesystem;
  const Scratch scratch;
  const auto trainer = tiny_trainer();
  trainer->step();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit low = old;
  low.rlim_cur = 20000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string message = message_of([&] { trainer->save(scratch.path() / "saved", nullptr); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_TRUE(contains(message, "safetensors")) << message;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  trainer->save(scratch.path() / "saved", nullptr);
  tiny_trainer()->load(scratch.path() / "saved");
}

}  // namespace
}  // namespace twell::lm
