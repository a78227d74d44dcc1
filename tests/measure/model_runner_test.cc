// What `bench model` compares: the same logits on every side, batches, joined weights, layers.
#include "measure/model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/layer_watch.h"
#include "measure/fit.h"
#include "measure/joined_layers.h"
#include "measure/layer_compare.h"
#include "synth/synth_sparsity.h"
#include "tests/decoder/tiny_model.h"
#include "tests/support/message_of.h"

namespace twell::lm {
namespace {

using testing::HasSubstr;

using test::fp32_bound;
using test::largest_difference;
using test::tiny_config;
using test::tiny_model;

std::vector<std::int64_t> some_text(std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < length; ++i) out.push_back((i * i * 7 + 3 * i) % vocabulary);
  return out;
}

TEST(ModelRunner, RecordedStepsSampleWhatTheTextsGive) {
  const auto model = tiny_model(tiny_config());
  const c10::InferenceMode inference;
  constexpr std::int64_t kSequences = 2, kPrompt = 3, kDecode = 5;
  const auto text = some_text(kSequences * (kPrompt + kDecode), 211);
  const Batch batch{text, kSequences, kPrompt, kDecode};
  ModelRunner plain(*model, batch, false);
  ModelRunner recorded(*model, batch, true);
  // Twice around, with a new recording and a leap, as the memory of a step is measured.
  for (const std::int64_t i : {0, 1, 2, 3, 4, 5, 6, 0, 1, 4}) {
    if (i == 6) recorded.settle_memory();
    plain.decode(i);
    recorded.decode(i);
    const at::Tensor most = plain.logits().argmax(1);
    for (std::int64_t s = 0; s < kSequences; ++s) {
      EXPECT_EQ(recorded.sampled()[static_cast<std::size_t>(s)], most[s].item<std::int64_t>()) << i;
    }
  }
  EXPECT_GT(recorded.own_bytes(), model->weight_bytes());
}

TEST(ModelRunner, ABatchIsItsSequencesOneByOne) {
  const auto model = tiny_model(tiny_config());
  const c10::InferenceMode inference;
  constexpr std::int64_t kSequences = 3, kPrompt = 7, kDecode = 2;
  const auto text = some_text(kSequences * (kPrompt + kDecode), 211);
  ModelRunner all(*model, {text, kSequences, kPrompt, kDecode}, false);
  for (const bool decoding : {false, true}) {
    decoding ? all.decode(1) : all.prefill();
    ASSERT_EQ(all.logits().sizes(), (std::vector<std::int64_t>{kSequences, 211}));
    for (std::int64_t s = 0; s < kSequences; ++s) {
      const auto own = std::span(text).subspan(static_cast<std::size_t>(s * (kPrompt + kDecode)),
                                               kPrompt + kDecode);
      ModelRunner one(*model, {own, 1, kPrompt, kDecode}, false);
      decoding ? one.decode(1) : one.prefill();
      EXPECT_LE(largest_difference(all.logits()[s], one.logits()[0]),
                2 * fp32_bound(model->config(), kPrompt + kDecode, one.logits()));
    }
  }
}

// Of every form that is served: the model's own logits, of prompts and of decoded tokens.
TEST(EagerRunner, HasTheModelsLogits) {
  std::vector<io::ModelConfig> configs = {tiny_config(), tiny_config(), tiny_config(),
                                          tiny_config()};
  configs[1].gated = false;
  configs[2].tie_word_embeddings = true;
  configs[2].num_key_value_heads = configs[2].num_attention_heads;
  configs[3].block.qkv_bias = configs[3].block.o_bias = configs[3].mlp_bias = true;
  configs[3].hidden_act = io::HiddenAct::silu;
  configs[3].block.positions.scaling = {.kind = io::RopeScaling::Kind::linear, .factor = 2.0};
  constexpr std::int64_t kSequences = 2, kPrompt = 20, kDecode = 3;
  const auto text = some_text(kSequences * (kPrompt + kDecode), 211);
  const Batch batch{text, kSequences, kPrompt, kDecode};
  for (const io::ModelConfig& config : configs) {
    const auto model = tiny_model(config);
    const c10::InferenceMode inference;
    ASSERT_TRUE(EagerModel::serves(config));
    const EagerModel eager(config, model->parameters());
    ModelRunner own(*model, batch, false);
    EagerRunner theirs(eager, batch);
    const auto expect_same = [&] {
      const double bound = fp32_bound(config, kPrompt + kDecode, own.logits());
      EXPECT_LE(largest_difference(own.logits(), theirs.logits()), 2 * bound);
    };
    own.prefill();
    theirs.prefill();
    expect_same();
    for (const std::int64_t i : {0, 1, 2, 3, 1}) {  // around, and a leap
      own.decode(i);
      theirs.decode(i);
      expect_same();
    }
    EXPECT_GT(theirs.own_bytes(), eager.weight_bytes());
  }
}

TEST(EagerModel, RefusesOtherForms) {
  io::ModelConfig config = tiny_config();
  config.block.head_norms = true;
  EXPECT_FALSE(EagerModel::serves(config));
  EXPECT_THAT(test::message_of([&] { EagerModel(config, {}); }), HasSubstr("Llama's form"));
  const auto message = test::message_of([&] { EagerModel(tiny_config(), {}); });
  EXPECT_THAT(message, HasSubstr("no tensor model.embed_tokens.weight"));
}

// Also of a model that is loaded where no gradients are wanted, as the benchmark loads it.
TEST(JoinedLayers, GiveTheSameEitherWayFromOneMemory) {
  for (const bool inference : {false, true}) {
    const c10::InferenceMode mode(inference);
    const at::NoGradGuard no_grad;
    const auto model = tiny_model(tiny_config());
    const auto text = some_text(12, 211);
    const at::Tensor before = sample_logits(*model, text);
    const std::int64_t bytes = model->weight_bytes();
    JoinedLayers joined(*model);
    for (const bool together : {false, true, false}) {
      joined.join(together);
      EXPECT_LE(largest_difference(sample_logits(*model, text), before),
                fp32_bound(model->config(), 12, before));
    }
    EXPECT_EQ(model->weight_bytes(), bytes);
    for (std::int64_t layer = 0; layer < model->layers(); ++layer) {
      const FfnParameters of = model->ffn_parameters(layer);
      EXPECT_EQ(static_cast<const float*>(of.gate.const_data_ptr()) + of.gate.numel(),
                of.up.const_data_ptr());
    }
  }
}

TEST(LayerWatch, ShowsInputsAndPutsTheLayerBack) {
  const auto model = tiny_model(tiny_config());
  const c10::InferenceMode inference;
  const auto text = some_text(9, 211);
  const FeedForward* const before = &model->feed_forward(1);
  at::Tensor seen;
  {
    const LayerWatch watch(*model, 1, [&seen](const at::Tensor& x) { seen = x; });
    sample_logits(*model, text);
  }
  EXPECT_EQ(seen.sizes(), (std::vector<std::int64_t>{9, 64}));
  EXPECT_EQ(&model->feed_forward(1), before);
}

TEST(LayerCompare, HasEveryLayerAndItsActivity) {
  const auto model = tiny_model(tiny_config()), sparse = tiny_model(tiny_config());
  const c10::InferenceMode inference;
  const auto text = some_text(16, 211);
  CompareOptions options;
  options.sequences = 2;
  options.prompt_tokens = 8;
  options.decode = false;
  options.measure.repeats = 1;
  options.measure.min_seconds = 0.001;
  std::int64_t ticks = 0;
  const std::vector<double> nnz = {1, 2, 3};
  const auto layers = compare_layers({{{"plain", model.get()}}, nullptr, sparse.get()}, text, nnz,
                                     options, [&ticks] { ++ticks; });
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(ticks, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layers[i].nnz_mean, nnz[i]);
    EXPECT_GT(layers[i].speedup(), 0);
  }
}

TEST(LayerCompare, CorrelationIsPearsons) {
  const auto layer = [](double nnz, double speedup) {
    LayerSpeed out;
    out.nnz_mean = nnz;
    out.dense.median_us = speedup;
    out.sparse.median_us = 1;
    return out;
  };
  EXPECT_NEAR(*correlation(std::vector{layer(1, 6), layer(2, 4), layer(3, 2)}), -1, 1e-12);
  EXPECT_NEAR(*correlation(std::vector{layer(1, 1), layer(2, 3), layer(3, 2), layer(4, 4)}), 0.8,
              1e-12);
  EXPECT_FALSE(correlation(std::vector{layer(1, 1), layer(2, 2)}));
  EXPECT_FALSE(correlation(std::vector{layer(1, 1), layer(1, 2), layer(1, 3)}));
}

TEST(Fit, LayersGrowWithTheMemoryAndNoneIsAnError) {
  const io::ModelConfig config = tiny_config();
  const MemoryNeed need{100, 10};
  EXPECT_EQ(layers_that_fit(need, 3, 0, "cpu"), 3);  // not known
  EXPECT_EQ(layers_that_fit(need, 3, 134, "cpu"), 2);
  EXPECT_EQ(layers_that_fit(need, 3, 1000, "cpu"), 3);
  const auto message = test::message_of([&] { layers_that_fit(need, 3, 50, "--device cuda"); });
  EXPECT_THAT(message, HasSubstr("--device cuda"));
  EXPECT_THAT(message, HasSubstr("smaller --batch"));
  // Weights of both copies and caches are the least of it.
  const CompareOptions options;
  const auto model = tiny_model(config);
  const MemoryNeed of = inference_need(config, options, 2, 1, 4);
  EXPECT_GE(of.fixed + 3 * of.per_layer, 2.0 * static_cast<double>(model->weight_bytes()) * 0.99);
  EXPECT_LT(training_need(config, 64, true).per_layer, training_need(config, 64, false).per_layer);
}

TEST(NnzOfLayers, HasThePapersShapeAndTheMeanAskedFor) {
  for (const std::int64_t layers : {1, 2, 8, 18, 28, 38}) {
    const auto nnz = nnz_of_layers(layers, 29);
    double mean = 0;
    for (const double one : nnz) mean += one / static_cast<double>(layers);
    EXPECT_NEAR(mean, 29, 1e-9);
  }
  const auto nnz = nnz_of_layers(28, 29);
  const auto peak = std::ranges::max_element(nnz) - nnz.begin();
  EXPECT_GT(peak, 3);
  EXPECT_LT(peak, 11);
  for (std::size_t i = 2; i < nnz.size(); ++i) EXPECT_LT(std::max(nnz[0], nnz[1]), nnz[i]);
}

}  // namespace
}  // namespace twell::lm
