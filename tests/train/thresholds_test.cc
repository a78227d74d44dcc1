#include "train/thresholds.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/architecture.h"
#include "tests/choice/slow_runtime.h"
#include "tests/support/message_of.h"
#include "tests/train/scratch.h"
#include "tests/train/tiny_run.h"
#include "train/schedule.h"
#include "train/trainer.h"

namespace twell::lm {
namespace {

using test::contains;
using test::message_of;
using test::Scratch;
using test::tiny_config;
using test::tiny_recipe;
using test::tiny_trainer;
using test::with_biases;
using test::with_share;
using test::with_threshold;

at::Tensor normal(Random& random, at::IntArrayRef sizes, double scale = 1.0) {
  const at::Tensor out = at::empty(sizes, at::kFloat);
  auto* data = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    data[i] = static_cast<float>(scale * random.normal());
  }
  return out;
}

io::ModelConfig without_gate(io::ModelConfig config) {
  config.gated = false;
  return config;
}

float by_sorting(const at::Tensor& values, double share) {
  std::vector<float> sorted(values.const_data_ptr<float>(),
                            values.const_data_ptr<float>() + values.numel());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto above = std::max(1.0, std::round(share * static_cast<double>(sorted.size())));
  return std::max(0.0F, sorted[static_cast<std::size_t>(above)]);
}

TEST(ThresholdOf, LeavesTheShareAboveIt) {
  Random random(3);
  const at::Tensor values = normal(random, {40, 25});
  for (const double share : {0.0, 0.001, 0.01, 0.0504, 0.3, 0.45}) {
    const float threshold = threshold_of(values, share);
    EXPECT_EQ(threshold, by_sorting(values, share)) << share;
    EXPECT_GT(threshold, 0.0F);
    EXPECT_EQ(values.gt(threshold).sum().item<std::int64_t>(),
              std::max<std::int64_t>(1, std::llround(1000 * share)));
  }
  EXPECT_EQ(threshold_of(values, 0.7), 0.0F) << "half of them are below 0";
  EXPECT_EQ(threshold_of(values, 1.0), 0.0F);
  // Equal ones fire all or not at all.
  EXPECT_EQ(threshold_of(at::tensor({1.0F, 2.0F, 2.0F, 2.0F}), 0.5), 2.0F);
}

// What fires is the straight line's share, in each layer in proportion to what fired at first.
TEST(ThresholdsTest, FollowTheLineAndThenStay) {
  Recipe recipe = tiny_recipe();
  recipe.share = 0.1;
  recipe.anneal_steps = 3;
  recipe.share_steps = 12;
  const auto model = make_model(with_threshold(tiny_config(), 0.25), at::kFloat, 1);
  Thresholds thresholds(*model);
  EXPECT_EQ(thresholds.of(1), 0.25F);
  Random random(1);
  std::vector<FfnParameters> layers(2);
  for (std::size_t i = 0; i < 2; ++i) {
    layers[i].gate = normal(random, {96, 32}, 0.2);
    layers[i].gate_bias = at::full({96}, i == 0 ? 0.0 : -0.6);
  }
  double first[2] = {}, sum = 0;
  std::vector<std::int64_t> fitted;
  for (std::int64_t step = 0; step < 20; ++step) {
    const std::vector<float> before = thresholds.state().thresholds;
    at::Tensor values[2];
    thresholds.begin_step(recipe, step);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const FfnParameters& p = layers[static_cast<std::size_t>(layer)];
      const at::Tensor x = normal(random, {64, 32});
      values[layer] = at::linear(x, p.gate, p.gate_bias);
      thresholds.see(layer, x, Projections(p));
      thresholds.see(layer, at::zeros({64, 32}), Projections(p));  // a second pass does not count
    }
    if (step == 3) {
      for (int i = 0; i < 2; ++i)
        first[i] = values[i].gt(0.25).to(at::kDouble).mean().item<double>();
      sum = first[0] + first[1];
      EXPECT_GT(first[0], 1.5 * first[1]);
    }
    thresholds.fit(recipe, step, {});
    if (thresholds.state().thresholds == before) continue;
    fitted.push_back(step);
    const double kept =
        1 - (1 - 0.1 / (sum / 2)) * std::min(1.0, static_cast<double>(step - 2) / 12);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(thresholds.of(layer), by_sorting(values[layer], first[layer] * kept)) << step;
    }
  }
  EXPECT_EQ(fitted, (std::vector<std::int64_t>{3, 11, 14}));
  EXPECT_TRUE(thresholds.state().settled);
}

// A run that is shortened behind the end of its path still gets there.
TEST(ThresholdsTest, AreSettledThoughTheEndWasPassed) {
  Recipe recipe = with_share(tiny_recipe());
  recipe.steps = 100;
  recipe.share_steps = 80;
  Thresholds thresholds(*make_model(with_threshold(tiny_config()), at::kFloat, 1));
  FfnParameters p;
  p.gate = at::ones({4, 2});
  for (std::int64_t step = 0; step < 14; ++step) {
    if (step == 11) recipe.shortened_to = 12;
    thresholds.begin_step(recipe, step);
    for (const std::int64_t layer : {0, 1}) thresholds.see(layer, at::ones({3, 2}), Projections(p));
    thresholds.fit(recipe, step, {});
    EXPECT_EQ(thresholds.state().settled, step >= 11) << step;
  }
}

TEST(ThresholdsTest, RefuseWhatHasNone) {
  const auto message = [](const io::ModelConfig& config) {
    return message_of([&] { Thresholds(*make_model(config, at::kFloat, 1)); });
  };
  EXPECT_EQ(message(with_threshold(tiny_config())), "");
  EXPECT_TRUE(contains(message(tiny_config()), "share: expected a model with relu or fatrelu"));
  io::ModelConfig normed = without_gate(with_threshold(tiny_config()));
  for (const io::Architecture* one : io::architectures()) {
    if (std::string(one->name) == "bitnet") normed.architecture = one;
  }
  normed.block = normed.architecture->block;
  EXPECT_TRUE(contains(message(normed), "share: layers have no gate, and a norm"))
      << message(normed);
}

// The layers compute the same with one threshold; also biases, and a layer without a threshold.
TEST(Fold, KeepsWhatLayersCompute) {
  for (const bool gated : {true, false}) {
    io::ModelConfig config = with_biases(with_threshold(tiny_config()));
    config.gated = gated;
    config.num_hidden_layers = 3;
    const auto model = make_model(config, at::kFloat, 2);
    const at::NoGradGuard no_grad;
    Random random(4);
    for (const auto& [name, parameter] : model->parameters()) {
      if (contains(name, ".mlp.")) parameter.copy_(normal(random, parameter.sizes(), 0.3));
    }
    const std::vector<float> thresholds = {0.5F, 0.125F, 0.0F};
    const FoldedThresholds folded = fold(*model, thresholds);
    EXPECT_EQ(folded.threshold, 0.5F);
    const at::Tensor x = normal(random, {50, 32}).to(at::kDouble);
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      const FfnParameters p = model->ffn_parameters(layer);
      const FfnNames names = model->ffn_names(layer);
      const auto taken = [&](const at::Tensor& tensor, const std::string& name, bool fold_it) {
        if (!tensor.defined()) return tensor;
        const auto found = folded.factors.find(name);
        const bool has = fold_it && found != folded.factors.end();
        return tensor.to(at::kDouble) * (has ? found->second : 1.0);
      };
      const auto output = [&](bool fold_it, float threshold) {
        const FfnParameters q{
            taken(p.gate, names.gate, fold_it),       taken(p.up, names.up, fold_it),
            taken(p.down, names.down, fold_it),       taken(p.gate_bias, names.gate_bias, fold_it),
            taken(p.up_bias, names.up_bias, fold_it), taken(p.down_bias, names.down_bias, fold_it)};
        return make_dense_feed_forward(q, {io::HiddenAct::fat_relu, threshold})
            ->forward(x, layer, nullptr);
      };
      const float own = thresholds[static_cast<std::size_t>(layer)];
      const at::Tensor want = output(false, own), got = output(true, folded.threshold);
      EXPECT_GT((want - output(false, folded.threshold)).abs().max().item<double>(),
                own < 0.5F ? 0.1 : -1);
      // Without a threshold, v up to 0.5 / 1024 are lost: of 96 neurons, each times |u| <= 6 or 1
      // and |wd| <= 1.5, but a thousandth of them are so near to 0.
      const double bound = own > 0 ? 1e-12 : 96 * 6 * 1.5 * 0.5 / 1024;
      EXPECT_LE((got - want).abs().max().item<double>(), bound) << layer;
    }
  }
}

struct Seen {
  StepResult step;
  std::vector<float> thresholds;
};
Seen next(Trainer& trainer) {
  const StepResult step = trainer.step();
  return {step, trainer.thresholds()};
}
void expect_same_step(const Seen& got, const Seen& want) {
  EXPECT_EQ(got.step.ce, want.step.ce) << want.step.step;
  EXPECT_EQ(got.step.l1, want.step.l1);
  EXPECT_EQ(got.step.grad_norm, want.step.grad_norm);
  EXPECT_EQ(got.thresholds, want.thresholds);
}

// Before a fitting, between two, and when the thresholds are settled.
void expect_resumed_with_thresholds(const Recipe& recipe, const io::ModelConfig& config,
                                    DeviceRuntime* gpu) {
  const auto make = [&] { return tiny_trainer(recipe, {}, gpu, config); };
  const auto whole = make();
  std::vector<Seen> expected;
  for (int i = 0; i < 20; ++i) expected.push_back(next(*whole));
  for (const float threshold : whole->thresholds()) EXPECT_GT(threshold, 0.0F);
  for (const int stop : {2, 8, 15}) {
    const Scratch scratch;
    const auto first = make(), second = make();
    for (int i = 0; i < stop; ++i) first->step();
    first->save(scratch.path() / "saved", nullptr);
    second->load(scratch.path() / "saved");
    for (int i = stop; i < 20; ++i) {
      expect_same_step(next(*second), expected[static_cast<std::size_t>(i)]);
    }
    const NamedTensors a = whole->model().parameters(), b = second->model().parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
    }
  }
}

TEST(TrainerWithThresholds, IsResumedToTheSameBits) {
  for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
    Recipe recipe = with_share(tiny_recipe());
    recipe.compute = compute;
    recipe.recompute = compute == ComputeType::bf16;
    recipe.accumulation = 2;
    recipe.l1_stages = parse_l1_stages("3:0,12:1e-2");
    expect_resumed_with_thresholds(recipe, with_biases(with_threshold(tiny_config())), nullptr);
    expect_resumed_with_thresholds(recipe, without_gate(with_threshold(tiny_config())), nullptr);
  }
}

TEST(TrainerWithThresholds, OnAGpuIsResumedToTheSameBits) {
  test::SlowRuntime gpu;
  gpu.training = [](const FfnShape&, std::int64_t, const std::vector<double>&) {
    return TrainingForm{true, 32};
  };
  expect_resumed_with_thresholds(with_share(tiny_recipe()), with_threshold(tiny_config()), &gpu);
}

// All tokens are in every step, weights do not move, and no layer changes what the next one sees:
// what fires is what was asked for, but for half a place by which a share is rounded, and one whose
// value is the threshold.
TEST(TrainerWithThresholds, AsManyFireAsTheRecipeSays) {
  TrainingData data = test::tiny_data();
  std::vector<std::int64_t> ids(4 * 16 + 1);
  data.tokens.read(0, ids);
  data.tokens = TokenStream(std::vector<std::int32_t>(ids.begin(), ids.end()));
  Recipe recipe = with_share(tiny_recipe());
  recipe.validation_fraction = 0.0;
  recipe.peak_lr = 0.0;
  auto model = make_model(with_threshold(tiny_config()), at::kFloat, 1);
  for (const auto& [name, parameter] : model->parameters()) {
    const at::NoGradGuard no_grad;
    if (contains(name, "down_proj")) at::Tensor(parameter).zero_();
  }
  Trainer trainer(std::move(model), recipe, data);
  std::vector<double> shares;
  for (int i = 0; i < 20; ++i) {
    trainer.reset_activity();
    trainer.step();
    double fired = 0;
    for (const LayerActivity& layer : trainer.activity()) fired += layer.nnz_mean / 96 / 2;
    shares.push_back(fired);
  }
  const double margin = 1.5 / (64 * 96);
  for (std::size_t step = 1; step < 20; ++step) {  // fitted in steps 1, 9 and 12
    const double progress = step < 9 ? 1.0 / 12 : step < 12 ? 9.0 / 12 : 1.0;
    EXPECT_NEAR(shares[step], shares[0] + (0.1 - shares[0]) * progress, margin) << step;
  }
}

// A directory has one threshold, and the loss of the run.
TEST(TrainerWithThresholds, SavedModelComputesWhatTheTrainerDoes) {
  for (const io::ModelConfig& config :
       {with_threshold(tiny_config()), with_biases(without_gate(with_threshold(tiny_config())))}) {
    for (const auto compute : {ComputeType::fp32, ComputeType::bf16}) {
      const Scratch scratch;
      Recipe recipe = with_share(tiny_recipe());
      recipe.compute = compute;
      const auto trainer = tiny_trainer(recipe, {}, nullptr, config);
      for (int i = 0; i < 15; ++i) trainer->step();
      const std::vector<float> thresholds = trainer->thresholds();
      EXPECT_NE(thresholds[0], thresholds[1]);
      trainer->save(scratch.path() / "model", nullptr);
      const io::ModelConfig saved = io::load_config(scratch.path() / "model");
      EXPECT_EQ(saved.hidden_act, io::HiddenAct::fat_relu);
      EXPECT_EQ(saved.fat_relu_threshold, *std::ranges::max_element(thresholds));
      recipe.share = 0.0;
      recipe.share_steps = 0;
      LoadOptions options;
      options.dtype = at::kFloat;
      options.trainable = true;
      Trainer again(load_model((scratch.path() / "model").string(), options), recipe,
                    test::tiny_data());
      // In fp32 a rounding of each weight, less than another order of the sums of 96 terms. In
      // bf16 each weight of two projections has an error of up to 2^-9 once more.
      const double relative = compute == ComputeType::fp32 ? 96 * 0x1p-24 : 0x1p-8;
      const double loss = *trainer->validation_loss();
      EXPECT_NEAR(*again.validation_loss(), loss, loss * relative);
    }
  }
}

}  // namespace
}  // namespace twell::lm
