// Whole models: cached against uncached, batched against single, gradients, layouts, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "checkpoint/architecture.h"
#include "tests/decoder/tiny_model.h"
#include "tests/support/message_of.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

using test::fp32_bound;
using test::largest_difference;
using test::message_of;
using test::ScratchDirectory;
using test::tiny_config;
using test::tiny_model;

std::vector<std::int64_t> random_tokens(std::int64_t count, unsigned seed = 5) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int64_t>(random() % 211));
  return out;
}

at::Tensor as_batch(const std::vector<std::int64_t>& tokens) {
  return at::tensor(tokens).unsqueeze(0);
}

at::Tensor run(Model& model, std::int64_t slot, std::span<const std::int64_t> tokens,
               KvCache* cache) {
  const Chunk chunk{slot, tokens};
  return model.head(model.hidden_states({&chunk, 1}, cache));
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  if (at == std::string::npos) return text;
  return text.substr(0, at) + to + text.substr(at + from.size());
}

// config.json as in the released SparseLM models: the activation is in the model type.
void call_it_sparse_lm(const std::filesystem::path& directory, const io::ModelConfig& config) {
  std::string json = config.to_json();
  json = replaced(json, "\"llama\"", "\"llama_sparse_relu\"");
  json = replaced(json, "\"relu\"", "\"silu\"");
  ASSERT_NE(json.find("llama_sparse_relu"), std::string::npos);
  ASSERT_NE(json.find("silu"), std::string::npos);
  std::ofstream(directory / "config.json") << json;
}

TEST(Model, CachedPiecesEqualTheWholeSequence) {
  auto config = tiny_config();
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    config.num_key_value_heads = kv_heads;
    const auto model = tiny_model(config);
    const at::NoGradGuard no_grad;
    const auto tokens = random_tokens(29);
    const at::Tensor whole = model->forward(as_batch(tokens))[0];
    // Prefill, a further piece, single tokens.
    for (const std::vector<std::size_t>& pieces : {std::vector<std::size_t>{29},
                                                   {1, 28},
                                                   {13, 9, 1, 1, 5},
                                                   std::vector<std::size_t>(29, 1)}) {
      KvCache cache = model->make_cache(2, 29);
      std::span<const std::int64_t> left(tokens);
      std::vector<at::Tensor> parts;
      for (const std::size_t piece : pieces) {
        parts.push_back(run(*model, 1, left.first(piece), &cache));
        left = left.subspan(piece);
      }
      EXPECT_EQ(cache.length(1), 29);
      EXPECT_EQ(cache.length(0), 0);
      EXPECT_LE(largest_difference(at::cat(parts), whole), fp32_bound(config, 29, whole));
    }
  }
}

TEST(Model, ABlockLeavesItsInputAsItIs) {
  const auto model = tiny_model(tiny_config());
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({2, 5, 64});
  const at::Tensor before = x.clone();
  EXPECT_FALSE(at::equal(model->block(1, x), before));
  EXPECT_TRUE(at::equal(x, before));
}

TEST(Model, NoTokensAreNoRows) {
  const auto model = tiny_model(tiny_config());
  for (const bool grad : {true, false}) {
    const at::AutoGradMode mode(grad);
    EXPECT_EQ(model->forward(at::zeros({0, 5}, at::kLong)).sizes(), (at::IntArrayRef{0, 5, 211}));
    EXPECT_EQ(model->forward(at::zeros({2, 0}, at::kLong)).sizes(), (at::IntArrayRef{2, 0, 211}));
  }
}

// Names and tensors of the same list; a name outlives the tensor that a sparse layer gives up.
TEST(Model, FeedForwardNamesAreThoseOfTheirTensors) {
  for (const bool gated : {true, false}) {
    auto config = tiny_config();
    config.gated = gated;
    config.block.qkv_bias = config.block.o_bias = config.mlp_bias = true;
    const auto model = tiny_model(config);
    const NamedTensors all = model->parameters();
    std::size_t found = 0;
    const auto expect_named = [&](const std::string& name, const at::Tensor& tensor) {
      EXPECT_EQ(name.empty(), !tensor.defined());
      for (const auto& [other, listed] : all) {
        if (other != name) continue;
        EXPECT_TRUE(listed.is_same(tensor)) << name;
        ++found;
      }
    };
    for (std::int64_t l = 0; l < model->layers(); ++l) {
      const FfnNames names = model->ffn_names(l);
      const FfnParameters p = model->ffn_parameters(l);
      EXPECT_EQ(names.down, "model.layers." + std::to_string(l) + ".mlp.down_proj.weight");
      expect_named(names.gate, p.gate);
      expect_named(names.up, p.up);
      expect_named(names.down, p.down);
      expect_named(names.gate_bias, p.gate_bias);
      expect_named(names.up_bias, p.up_bias);
      expect_named(names.down_bias, p.down_bias);
      expect_named(names.norm_weight, p.norm_weight);
    }
    EXPECT_EQ(found, gated ? 18U : 12U);
  }
  ScratchDirectory directory;
  const auto config = tiny_config();
  test::save_model(directory.path(), config, tiny_model(config)->parameters());
  const auto sparse = load_model(directory.string(), {.path = FfnPath::sparse});
  EXPECT_EQ(sparse->ffn_names(2).gate, "model.layers.2.mlp.gate_proj.weight");
  EXPECT_THAT(message_of([&] { (void)sparse->ffn_names(3); }), testing::HasSubstr("no layer 3"));
}

TEST(Model, GradModeComputesTheSame) {
  const auto config = tiny_config();
  const auto model = tiny_model(config);
  const at::Tensor tokens = at::tensor(random_tokens(36)).view({2, 18});
  const at::Tensor with_grad = model->forward(tokens).detach();
  const at::NoGradGuard no_grad;
  EXPECT_LE(largest_difference(with_grad, model->forward(tokens)),
            fp32_bound(config, 18, with_grad));
}

TEST(Model, RaggedBatchEqualsItsSequencesAlone) {
  const auto config = tiny_config();
  const auto model = tiny_model(config);
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<std::int64_t>> prompts = {random_tokens(7, 1), random_tokens(19, 2),
                                                          random_tokens(1, 3), random_tokens(7, 4)};
  const auto more = random_tokens(4, 9);
  KvCache cache = model->make_cache(4, 32);
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < 4; ++i) chunks.push_back({static_cast<std::int64_t>(i), prompts[i]});
  const at::Tensor prefill = model->head(model->hidden_states(chunks, &cache));
  const at::Tensor uncached = model->head(model->hidden_states(chunks));
  for (std::size_t i = 0; i < 4; ++i) chunks[i].tokens = {&more[i], 1};
  const at::Tensor decoded = model->head(model->hidden_states(chunks, &cache));
  std::int64_t row = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    auto tokens = prompts[i];
    tokens.push_back(more[i]);
    const at::Tensor alone = model->forward(as_batch(tokens))[0];
    const auto length = static_cast<std::int64_t>(prompts[i].size());
    const double bound = fp32_bound(config, length, alone);
    EXPECT_LE(largest_difference(prefill.narrow(0, row, length), alone.narrow(0, 0, length)),
              bound);
    EXPECT_LE(largest_difference(uncached.narrow(0, row, length), alone.narrow(0, 0, length)),
              bound);
    EXPECT_LE(largest_difference(decoded[static_cast<std::int64_t>(i)], alone[length]), bound);
    row += length;
  }
}

TEST(Model, TruncatedCacheForgets) {
  const auto model = tiny_model(tiny_config());
  const at::NoGradGuard no_grad;
  const auto a = random_tokens(9, 1);
  const auto b = random_tokens(9, 2);
  KvCache cache = model->make_cache(1, 12);
  run(*model, 0, a, &cache);
  cache.truncate(0, 0);
  const at::Tensor again = run(*model, 0, b, &cache);
  KvCache fresh = model->make_cache(1, 12);
  EXPECT_TRUE(at::equal(again, run(*model, 0, b, &fresh)));
}

// Central differences of the loss along a random direction, in every parameter.
TEST(Model, GradientsAreRight) {
  auto config = tiny_config();
  config.hidden_act = io::HiddenAct::silu;  // smooth: a step never crosses a kink
  config.architecture = &io::kQwen2;
  config.block.qkv_bias = true;
  const auto model = tiny_model(config);
  const at::Tensor tokens = at::tensor(random_tokens(24)).view({2, 12});
  const at::Tensor targets = at::tensor(random_tokens(24, 8));
  const auto loss = [&] {
    return at::cross_entropy_loss(model->forward(tokens).view({24, -1}), targets);
  };
  loss().backward();
  for (const auto& [name, p] : model->parameters()) {
    ASSERT_TRUE(p.grad().defined()) << name;
    const at::NoGradGuard no_grad;
    const at::Tensor direction = p.grad() / p.grad().norm();
    const double expected = (p.grad() * direction).sum().item<double>();
    // The error of a central difference is of third order in the step, and fp32 noise of the loss
    // (a few 1e-6) is divided by it: at 1e-2 both are below 1 % of gradients near 0.1.
    const double step = 1e-2;
    p.add_(direction, step);
    const double above = loss().item<double>();
    p.sub_(direction, 2 * step);
    const double below = loss().item<double>();
    p.add_(direction, step);
    EXPECT_NEAR((above - below) / (2 * step), expected, 0.02 * expected + 1e-3) << name;
  }
}

TEST(Model, ObserverSeesDifferentiableHiddenStates) {
  struct Sum final : FfnObserver {
    bool wants_hidden() const override { return true; }
    void begin(std::span<const std::int64_t> p) override { positions.assign(p.begin(), p.end()); }
    void observe(const FfnActivity& activity) override {
      EXPECT_EQ(activity.layer, layers++);
      l1 = l1.defined() ? l1 + activity.hidden.abs().sum() : activity.hidden.abs().sum();
    }
    std::vector<std::int64_t> positions;
    std::int64_t layers = 0;
    at::Tensor l1;
  } observer;
  const auto config = tiny_config();
  const auto model = tiny_model(config);
  model->forward(at::tensor(random_tokens(12)).view({2, 6}), &observer);
  EXPECT_EQ(observer.layers, config.num_hidden_layers);
  EXPECT_EQ(observer.positions, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  observer.l1.backward();
  EXPECT_GT(model->ffn_parameters(0).gate.grad().abs().sum().item<double>(), 0.0);
}

TEST(Model, SavedAndLoadedAgainIsTheSame) {
  ScratchDirectory directory;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto config = tiny_config();
    const auto model = tiny_model(config, dtype);
    test::save_model(directory.path(), config, model->parameters());
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = as_batch(random_tokens(20));
    const at::Tensor expected = model->forward(tokens);
    EXPECT_TRUE(at::equal(load_model(directory.string(), {.path = FfnPath::dense})->forward(tokens),
                          expected));
    EXPECT_TRUE(
        at::equal(load_model(directory.string(), {.trainable = true})->forward(tokens), expected));
  }
}

// Few rows and many, whether the head is the embedding or not.
TEST(Model, LogitsOfBf16AreNotRounded) {
  for (const bool tied : {false, true}) {
    auto config = tiny_config();
    config.tie_word_embeddings = tied;
    ScratchDirectory directory;
    test::save_model(directory.path(), config, tiny_model(config, at::kBFloat16)->parameters());
    for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
      const auto model = load_model(directory.string(), {.path = path});
      at::Tensor weight;
      for (const auto& [name, tensor] : model->parameters()) {
        if (name == (tied ? "model.embed_tokens.weight" : "lm_head.weight")) weight = tensor;
      }
      const at::Tensor wide = weight.to(at::kDouble).t();
      for (const std::int64_t rows : {1, 5, 29}) {
        const at::NoGradGuard no_grad;
        const at::Tensor x = at::randn({rows, config.hidden_size}).to(at::kBFloat16);
        const at::Tensor logits = model->head(x);
        EXPECT_EQ(logits.scalar_type(), at::kFloat);
        const at::Tensor in = x.to(at::kDouble);
        const at::Tensor bound =
            in.abs().matmul(wide.abs()) * (static_cast<double>(config.hidden_size + 2) * 0x1p-24);
        EXPECT_LE(((logits - in.matmul(wide)).abs() - bound).max().item<double>(), 0.0) << rows;
      }
      const at::NoGradGuard no_grad;
      EXPECT_EQ(model->forward(as_batch(random_tokens(9))).scalar_type(), at::kFloat);
    }
  }
}

TEST(Model, DtypeIsConvertedOnRequest) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  const auto model = tiny_model(config, at::kBFloat16);
  test::save_model(directory.path(), config, model->parameters());
  const auto wide = load_model(directory.string(), {.path = FfnPath::sparse, .dtype = at::kFloat});
  EXPECT_EQ(wide->dtype(), at::kFloat);
  EXPECT_EQ(wide->parameters()[0].second.scalar_type(), at::kFloat);
}

TEST(Model, SparseLayersKeepNoSecondCopy) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  const auto model = tiny_model(config, at::kBFloat16);
  test::save_model(directory.path(), config, model->parameters());
  const auto sparse = load_model(directory.string(), {.path = FfnPath::sparse});
  for (const auto& [name, tensor] : sparse->parameters()) {
    EXPECT_EQ(name.find("gate_proj"), std::string::npos);
    EXPECT_EQ(name.find("down_proj"), std::string::npos);
  }
  // Panels of 16 neurons and 32 inputs: nothing is padded at 176 x 64, but where rows are spread.
  const bool spread = tuning_of(default_cpu_tier()).gather_columns > 0;
  const std::int64_t padding = spread ? 2 * 176 * (spread_stride(64, 2) - 64) * 2 : 0;
  EXPECT_EQ(sparse->weight_bytes(), model->weight_bytes() + config.num_hidden_layers * padding);
  EXPECT_THAT(message_of([&] { sparse->ffn_parameters(0); }), testing::HasSubstr("trainable"));
}

// The released layout: upper-case keys, orientation told by the shape.
TEST(Model, SparseLmLayout) {
  auto config = tiny_config();
  const auto model = tiny_model(config);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = as_batch(random_tokens(20));
  const at::Tensor expected = model->forward(tokens);
  for (const bool upper_case : {false, true}) {
    for (const bool down_transposed : {false, true}) {
      ScratchDirectory directory;
      NamedTensors tensors;
      for (auto [name, tensor] : model->parameters()) {
        if (name.find("down_proj") != std::string::npos && down_transposed) {
          tensor = tensor.t().contiguous();
        }
        if (upper_case) {
          name = replaced(name, "gate_proj.weight", "GATE");
          name = replaced(name, "up_proj.weight", "UP");
          name = replaced(name, "down_proj.weight", "DOWN");
        }
        tensors.emplace_back(name, tensor);
      }
      test::save_model(directory.path(), config, tensors);
      call_it_sparse_lm(directory.path(), config);
      for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
        const at::Tensor got = load_model(directory.string(), {.path = path})->forward(tokens);
        EXPECT_LE(largest_difference(got, expected), fp32_bound(config, 20, expected))
            << name_of(path) << (upper_case ? " upper" : "")
            << (down_transposed ? " transposed" : "");
      }
    }
  }
}

TEST(Model, AmbiguousSparseLmLayoutIsRefused) {
  ScratchDirectory directory;
  auto config = tiny_config();
  config.intermediate_size = config.hidden_size;
  const auto model = tiny_model(config);
  test::save_model(directory.path(), config, model->parameters());
  call_it_sparse_lm(directory.path(), config);
  EXPECT_THAT(message_of([&] { load_model(directory.string()); }),
              testing::AllOf(testing::HasSubstr("model.safetensors"),
                             testing::HasSubstr("gate_proj"), testing::HasSubstr("transposed")));
}

TEST(Model, DamagedCheckpointsAreNamed) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  const auto model = tiny_model(config);
  const auto load = [&] { load_model(directory.string()); };
  // A missing tensor.
  NamedTensors tensors = model->parameters();
  NamedTensors missing(tensors.begin(), tensors.end());
  std::erase_if(missing, [](const auto& t) { return t.first == "model.norm.weight"; });
  test::save_model(directory.path(), config, missing);
  EXPECT_THAT(message_of(load), testing::AllOf(testing::HasSubstr("model.norm.weight"),
                                               testing::HasSubstr(directory.string())));
  // A wrong shape.
  auto other = config;
  other.intermediate_size = 160;
  test::save_model(directory.path(), other, tensors);
  EXPECT_THAT(message_of(load),
              testing::AllOf(testing::HasSubstr("model.safetensors"), testing::HasSubstr("mlp."),
                             testing::HasSubstr("176"), testing::HasSubstr("160")));
  // A NaN and an infinity, in each dtype.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double poison :
         {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      NamedTensors damaged;
      for (const auto& [name, tensor] : tensors) {
        at::Tensor copy = tensor.detach().to(dtype, false, true);
        if (name == "model.layers.1.mlp.up_proj.weight") copy[175][63] = poison;
        damaged.emplace_back(name, copy);
      }
      test::save_model(directory.path(), config, damaged);
      EXPECT_THAT(message_of(load), testing::HasSubstr("model.layers.1.mlp.up_proj.weight"));
    }
  }
}

// Of each kind: layers beyond the config's, a gate that it denies, biases that it denies, a tied
// output matrix that is another one.
TEST(Model, TensorsWithoutUseAreRefused) {
  const ScratchDirectory directory;
  const auto expect_refused = [&](const io::ModelConfig& config, const io::ModelConfig& written,
                                  const NamedTensors& tensors, const std::string& name) {
    test::save_model(directory.path(), written, tensors);
    for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
      LoadOptions options;
      options.path = path;
      EXPECT_THAT(message_of([&] { load_model(directory.string(), options); }),
                  testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("safetensors")));
      options.allow_unused = true;
      EXPECT_NO_THROW(load_model(directory.string(), options));
    }
    test::save_model(directory.path(), config, tensors);
    if (&config != &written) {
      EXPECT_NO_THROW(load_model(directory.string()));
    }
  };
  io::ModelConfig config = tiny_config();
  NamedTensors tensors = tiny_model(config)->parameters();
  io::ModelConfig fewer = config;
  fewer.num_hidden_layers = 1;
  expect_refused(config, fewer, tensors, "model.layers.1.input_layernorm.weight");
  io::ModelConfig plain = config;
  plain.gated = false;
  expect_refused(config, plain, tensors, "model.layers.0.mlp.gate_proj.weight");

  io::ModelConfig biased = config;
  biased.block.qkv_bias = biased.block.o_bias = true;
  expect_refused(biased, config, tiny_model(biased)->parameters(),
                 "model.layers.0.self_attn.k_proj.bias");

  io::ModelConfig tied = config;
  tied.tie_word_embeddings = true;
  tensors = tiny_model(tied)->parameters();
  at::Tensor head = tensors.front().second.detach().clone();
  ASSERT_EQ(tensors.front().first, "model.embed_tokens.weight");
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({8}));
  tensors.emplace_back("lm_head.weight", head);
  test::save_model(directory.path(), tied, tensors);  // equal: as `transformers` may store it
  EXPECT_NO_THROW(load_model(directory.string()));
}

// As `transformers` takes such files; test_other_directories.py compares the numbers.
TEST(Model, HeadsThatAreNotWhatTheyAreTiedTo) {
  ScratchDirectory directory;
  io::ModelConfig config = tiny_config();
  config.tie_word_embeddings = true;
  NamedTensors tensors = tiny_model(config)->parameters();
  at::Tensor head = tensors.front().second.detach().clone();
  tensors.emplace_back("lm_head.weight", head);
  const auto load = [&] {
    test::save_model(directory.path(), config, tensors);
    return load_model(directory.string());
  };
  EXPECT_TRUE(load()->config().tie_word_embeddings);
  head[0][0] += 1;
  EXPECT_FALSE(load()->config().tie_word_embeddings);
  const auto model = load();
  EXPECT_EQ(model->parameters().back().first, "lm_head.weight");
  EXPECT_TRUE(at::equal(model->parameters().back().second, head));
  // Rounded alike, they are the same in the type that is loaded.
  head.copy_(tensors.front().second);
  tensors.back().second = head.to(at::kBFloat16);
  test::save_model(directory.path(), config, tensors);
  EXPECT_FALSE(load_model(directory.string())->config().tie_word_embeddings);
  EXPECT_TRUE(
      load_model(directory.string(), {.dtype = at::kBFloat16})->config().tie_word_embeddings);
  head = at::zeros({3, 3});
  tensors.back().second = head;
  EXPECT_THAT(message_of(load), testing::HasSubstr("lm_head.weight"));
}

TEST(Model, CallersMistakesAreErrors) {
  const auto model = tiny_model(tiny_config());
  const at::NoGradGuard no_grad;
  const auto tokens = random_tokens(8);
  KvCache cache = model->make_cache(2, 10);
  run(*model, 0, tokens, &cache);
  EXPECT_THAT(message_of([&] { run(*model, 0, tokens, &cache); }), testing::HasSubstr("10"));
  EXPECT_EQ(cache.length(0), 8);
  EXPECT_THAT(message_of([&] { run(*model, 2, tokens, &cache); }), testing::HasSubstr("slot 2"));
  EXPECT_THAT(message_of([&] { run(*model, 1, {}, &cache); }), testing::HasSubstr("empty"));
  EXPECT_THAT(message_of([&] { run(*model, 1, std::vector<std::int64_t>{211}, &cache); }),
              testing::HasSubstr("211"));
  EXPECT_THAT(message_of([&] { run(*model, 0, random_tokens(97), nullptr); }),
              testing::HasSubstr("96"));
  EXPECT_THAT(message_of([&] {
                model->forward(at::full({1, 2}, -1, at::kLong));
              }),
              testing::HasSubstr("-1"));
  EXPECT_THAT(message_of([&] {
                model->forward(at::zeros({1, 97}, at::kLong));
              }),
              testing::HasSubstr("96"));
  const std::vector<Chunk> twice = {{1, tokens}, {1, tokens}};
  EXPECT_THAT(message_of([&] { model->hidden_states(twice, &cache); }),
              testing::HasSubstr("twice"));
}

TEST(Model, SparsePathNeedsZeros) {
  ScratchDirectory directory;
  auto config = tiny_config();
  config.hidden_act = io::HiddenAct::silu;
  const auto model = tiny_model(config);
  test::save_model(directory.path(), config, model->parameters());
  EXPECT_THAT(message_of([&] { load_model(directory.string(), {.path = FfnPath::sparse}); }),
              testing::AllOf(testing::HasSubstr("silu"), testing::HasSubstr("dense")));
  // Automatic simply is dense then.
  EXPECT_EQ(load_model(directory.string())->feed_forward(0).path(), FfnPath::dense);
}

TEST(Model, NonGatedIsHalfTheParameters) {
  auto config = tiny_config();
  config.gated = false;
  const auto model = tiny_model(config);
  EXPECT_FALSE(model->ffn_parameters(0).gated());
  ScratchDirectory directory;
  test::save_model(directory.path(), config, model->parameters());
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = as_batch(random_tokens(20));
  const at::Tensor expected = model->forward(tokens);
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    const at::Tensor got = load_model(directory.string(), {.path = path})->forward(tokens);
    EXPECT_LE(largest_difference(got, expected), fp32_bound(config, 20, expected));
  }
}

}  // namespace
}  // namespace twell::lm
