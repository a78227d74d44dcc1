// Blocks unlike Llama's: each against its definition, and in every way of running.
#include <gtest/gtest.h>

#include <map>

#include "tests/decoder/other_architectures.h"
#include "tests/decoder/tiny_model.h"

namespace twell::lm {
namespace {

using io::Arrangement;
using io::NormOrder;
using test::fp32_bound;
using test::largest_difference;

io::ModelConfig config_of(const io::Architecture& architecture) {
  auto config = test::tiny_config();
  config.architecture = &architecture;
  config.block = architecture.block;
  config.gated = architecture.gated;
  config.mlp_bias = architecture.mlp_bias;
  if (config.block.experts.count > 0) {  // each is to get some of 40 tokens
    config.block.experts.count = 6;
    config.block.experts.active = 2;
  }
  if (*architecture.keys.num_key_value_heads == '\0') config.num_key_value_heads = 4;
  return config;
}

std::vector<io::ModelConfig> all_configs() {
  std::vector<io::ModelConfig> out;
  for (const io::Architecture* architecture : test::all_architectures()) {
    out.push_back(config_of(*architecture));
  }
  out.push_back(config_of(test::architecture("opt")));
  out.back().block.order = NormOrder::post;
  out.push_back(config_of(test::architecture("smallthinker")));
  out.back().block.experts.softmax = true;
  out.back().block.experts.early = false;
  out.back().block.positions.unrotated_every = 2;
  out.push_back(config_of(test::kStableLm));
  out.back().block.arrangement = Arrangement::parallel_one_norm;
  return out;
}

at::Tensor tokens_of(std::int64_t count) { return (at::arange(count) * 37 + 11).remainder(211); }

// The model as it is defined, in fp64, from the names of its tensors.
class Definition {
 public:
  Definition(const Model& model, const io::ModelConfig& config)
      : c_(config), names_(config.architecture->tensors) {
    for (const auto& [name, tensor] : model.parameters()) {
      tensors_[name] = tensor.detach().to(at::kDouble);
    }
  }

  at::Tensor logits(const at::Tensor& tokens) const {
    at::Tensor x = tensors_.at(std::string(names_.embedding) + "weight").index_select(0, tokens);
    const std::int64_t length = tokens.size(0);
    if (c_.block.positions.kind == io::PositionSpec::Kind::learned) {
      x = x + tensors_.at(std::string(names_.positions) + "weight")
                  .narrow(0, c_.block.positions.offset, length);
    }
    for (std::int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      const std::string at = names_.layers + std::to_string(layer) + ".";
      const auto attended = [&](const at::Tensor& in) { return attention(at, in); };
      const auto fed = [&](const at::Tensor& in) { return ffn(at, in); };
      if (c_.block.arrangement == Arrangement::parallel) {
        x = x + attended(norm(at + names_.attention_norm, x)) + fed(norm(at + names_.ffn_norm, x));
      } else {
        x = x +
            norm(at + names_.attention_output_norm, attended(norm(at + names_.attention_norm, x)));
        x = x + norm(at + names_.ffn_output_norm, fed(norm(at + names_.ffn_norm, x)));
      }
    }
    return at::linear(norm(names_.final_norm, x), tensors_.at(std::string(names_.head) + "weight"));
  }

 private:
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    const auto find = [&](const char* which) {
      const auto found = tensors_.find(name + which);
      return found == tensors_.end() ? at::Tensor() : found->second;
    };
    at::Tensor y = x / (x.square().mean(-1, true) + c_.block.norm.eps).sqrt();
    if (const at::Tensor w = find("weight"); w.defined()) y = y * w;
    if (const at::Tensor b = find("bias"); b.defined()) y = y + b;
    return y;
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, tensors_.at(name + "weight"));
  }
  at::Tensor attention(const std::string& at, const at::Tensor& x) const {
    const auto heads = [&](const char* name, std::int64_t count) {
      return linear(at + name, x).view({x.size(0), count, -1}).transpose(0, 1);
    };
    const std::int64_t groups = c_.num_attention_heads / c_.num_key_value_heads;
    const at::Tensor q = heads(names_.q, c_.num_attention_heads);
    const at::Tensor k = heads(names_.k, c_.num_key_value_heads).repeat_interleave(groups, 0);
    const at::Tensor v = heads(names_.v, c_.num_key_value_heads).repeat_interleave(groups, 0);
    const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(c_.head_dim);
    const at::Tensor future = at::ones({x.size(0), x.size(0)}, at::kBool).triu(1);
    const at::Tensor mixed = scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v);
    return linear(at + names_.o, mixed.transpose(0, 1).flatten(1));
  }
  at::Tensor ffn(const std::string& at, const at::Tensor& x) const {
    const at::Tensor up = linear(at + names_.up, x);
    const at::Tensor h = c_.gated ? at::relu(linear(at + names_.gate, x)) * up : at::relu(up);
    return linear(at + names_.down, h);
  }

  const io::ModelConfig& c_;
  const io::TensorNames& names_;
  std::map<std::string, at::Tensor> tensors_;
};

// Those that no class of `transformers` has: test_transformers.py compares the others.
TEST(Forms, AreTheirDefinitions) {
  for (const io::Architecture* architecture : {&test::kSandwich, &test::kSideBySide}) {
    SCOPED_TRACE(architecture->name);
    const io::ModelConfig config = config_of(*architecture);
    const auto model = test::tiny_model(config);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = tokens_of(40);
    const at::Tensor exact = Definition(*model, config).logits(tokens);
    const at::Tensor got = model->forward(tokens.unsqueeze(0))[0];
    EXPECT_LE(largest_difference(got.to(at::kDouble), exact), fp32_bound(config, 40, exact));
  }
}

TEST(Forms, CachedPiecesAndStepsEqualTheWholeSequence) {
  for (const io::ModelConfig& config : all_configs()) {
    SCOPED_TRACE(config.architecture->name);
    const auto model = test::tiny_model(config);
    const at::NoGradGuard no_grad;
    constexpr std::int64_t kLength = 23, kPrompt = 14;
    const at::Tensor tokens = tokens_of(kLength);
    const at::Tensor whole = model->forward(tokens.unsqueeze(0))[0];
    const std::vector<std::int64_t> ids(tokens.const_data_ptr<std::int64_t>(),
                                        tokens.const_data_ptr<std::int64_t>() + kLength);
    const std::span all(ids);
    KvCache cache = model->make_cache(1, kLength), fixed = model->make_cache(1, kLength, true);
    std::vector<at::Tensor> pieces, steps;
    for (std::int64_t at = 0; at < kLength; at += at == 0 ? kPrompt : 1) {
      const auto from = static_cast<std::size_t>(at);
      const Chunk chunk{0, all.subspan(from, at == 0 ? kPrompt : 1)};
      pieces.push_back(model->head(model->hidden_states({&chunk, 1}, &cache)));
      steps.push_back(model->head(
          at == 0 ? model->hidden_states({&chunk, 1}, &fixed)
                  : model->step(at::tensor(ids[from]).view(1), at::tensor(at).view(1), fixed)));
    }
    const double bound = fp32_bound(config, kLength, whole);
    EXPECT_LE(largest_difference(at::cat(pieces), whole), bound);
    EXPECT_LE(largest_difference(at::cat(steps), whole), bound);
  }
}

// The softmax does not see what all keys have in common, unless they are rotated.
bool is_without_effect(const io::ModelConfig& config, const std::string& parameter) {
  return config.rotated_dims() == 0 && parameter.ends_with("k_proj.bias");
}

// Central differences of the loss along a parameter's gradient, as in model_test.cc.
TEST(Forms, GradientsAreRight) {
  for (io::ModelConfig config : all_configs()) {
    SCOPED_TRACE(config.architecture->name);
    config.hidden_act = io::HiddenAct::silu;
    config.block.experts.active = config.block.experts.count;  // or the loss has steps
    if (config.block.up != Activation::identity) {  // that of the gate, and without a kink
      config.hidden_act = io::HiddenAct::relu_squared;
      config.block.up = Activation::relu_squared;
    }
    const auto model = test::tiny_model(config);
    const at::Tensor tokens = tokens_of(24).view({2, 12});
    const auto loss = [&] {
      return at::cross_entropy_loss(model->forward(tokens).view({24, -1}), tokens_of(24).flip(0));
    };
    loss().backward();
    for (const auto& [name, p] : model->parameters()) {
      ASSERT_TRUE(p.grad().defined()) << name;
      const at::NoGradGuard no_grad;
      const double size = p.grad().norm().item<double>();
      if (is_without_effect(config, name)) {
        EXPECT_LE(size, 1e-5) << name;
        continue;
      }
      const at::Tensor direction = p.grad() / size;
      const double step = 5e-3;
      p.add_(direction, step);
      const double above = loss().item<double>();
      p.sub_(direction, 2 * step);
      const double below = loss().item<double>();
      p.add_(direction, step);
      EXPECT_NEAR((above - below) / (2 * step), size, 0.02 * size + 1e-3) << name;
    }
  }
}

// No parameter that a file holds is left out, on either path, and both agree on what it does.
TEST(Forms, EveryParameterMoves) {
  constexpr std::int64_t kLength = 40;
  for (io::ModelConfig config : all_configs()) {
    SCOPED_TRACE(config.architecture->name);
    config.num_hidden_layers = 1;
    if (config.block.positions.unrotated_every > 0) config.block.positions.unrotated_every = 1;
    const auto model = test::tiny_model(config);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = tokens_of(kLength).unsqueeze(0);
    const at::Tensor before = model->forward(tokens);
    for (const auto& [name, p] : model->parameters()) {
      SCOPED_TRACE(name);
      const at::Tensor kept = p.clone();
      p.add_(at::randn_like(p), 0.3 * (kept.square().mean().sqrt().item<double>() + 0.1));
      const at::Tensor after = model->forward(tokens);
      const double bound = fp32_bound(config, kLength, after);
      if (is_without_effect(config, name)) {
        EXPECT_LE(largest_difference(after, before), bound);
      } else {
        EXPECT_GE(largest_difference(after, before), 100 * bound);
      }
      const test::ScratchDirectory directory;
      test::save_model(directory.path(), config, model->parameters());
      for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
        const auto loaded = load_model(directory.string(),
                                       {.path = path, .architectures = test::all_architectures()});
        EXPECT_LE(largest_difference(loaded->forward(tokens), after), bound) << name_of(path);
      }
      p.copy_(kept);
    }
  }
}

TEST(Forms, SavedAndLoadedAgainAreTheSame) {
  for (const io::ModelConfig& config : all_configs()) {
    SCOPED_TRACE(config.architecture->name);
    const test::ScratchDirectory directory;
    const auto model = test::tiny_model(config);
    test::save_model(directory.path(), config, model->parameters());
    // Copies: where a file is mapped, weights lie at other multiples, of which MKL's sums of a few
    // rows depend.
    const auto again = load_model(directory.string(),
                                  {.trainable = true, .architectures = test::all_architectures()});
    EXPECT_EQ(again->config().block, config.block);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = tokens_of(20).unsqueeze(0);
    EXPECT_TRUE(at::equal(again->forward(tokens), model->forward(tokens)));
  }
}

}  // namespace
}  // namespace twell::lm
