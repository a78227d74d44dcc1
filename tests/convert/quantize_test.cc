// Quantised models: which layers have how many bits, and what is read of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/architecture.h"
#include "checkpoint/config.h"
#include "convert/quantize_model.h"
#include "decoder/linear.h"
#include "decoder/model_directory.h"
#include "decoder/parameters.h"
#include "files/note.h"
#include "tests/decoder/tiny_model.h"

namespace twell::lm {
namespace {

using test::ScratchDirectory;
using testing::HasSubstr;

class Quantized : public testing::Test {
 protected:
  void SetUp() override {
    io::set_note_sink([this](const std::string& line) { notes_.push_back(line); });
  }
  void TearDown() override { io::set_note_sink({}); }

  QuantizedModel quantize(const io::ModelConfig& config, const QuantizeOptions& options) {
    const auto model = test::tiny_model(config);
    test::save_model(from_.path(), config, model->parameters());
    QuantizedModel out = quantize_model(from_.path(), to_.path(), options);
    io::save_config(to_.path(), out.config);
    return out;
  }

  ScratchDirectory from_, to_;
  std::vector<std::string> notes_;
};

std::vector<Parameter> parameters_of(const io::ModelConfig& config) {
  std::vector<Parameter> out;
  const DecoderWeights weights = weights_of(config);
  for_each_parameter(weights, [&](const Parameter& parameter) { out.push_back(parameter); });
  return out;
}

// Of every architecture, down and the head have 8 bits, all other matrices 4.
TEST_F(Quantized, LayersOfEveryArchitectureAreFoundByTheirNames) {
  for (const io::Architecture* const architecture : io::architectures()) {
    SCOPED_TRACE(architecture->name);
    io::ModelConfig config = test::tiny_config();
    config.num_key_value_heads = config.num_attention_heads;  // some know no others
    config.architecture = architecture;
    config.block = architecture->block;
    config.gated = architecture->gated;
    config.mlp_bias = architecture->mlp_bias;
    const QuantizedModel made = quantize(config, {.bits = 4, .group = 32});
    ASSERT_TRUE(made.config.quantization);
    std::int64_t matrices = 0;
    for (const Parameter& parameter : parameters_of(made.config)) {
      const auto scheme = scheme_of(*made.config.quantization, parameter, "test");
      const bool matrix = parameter.kind == ParameterKind::matrix ||
                          parameter.kind == ParameterKind::residual_matrix;
      EXPECT_EQ(scheme.has_value(), matrix) << parameter.name;
      if (!scheme) continue;
      ++matrices;
      const std::string name = parameter.name;
      const bool eight = name.ends_with(architecture->tensors.down + std::string("weight")) ||
                         name == architecture->tensors.head + std::string("weight");
      EXPECT_EQ(scheme->bits, eight ? 8 : 4) << name;
    }
    const std::int64_t ffns = std::max<std::int64_t>(1, config.block.experts.count);
    const std::int64_t of_block = 4 + ffns * (config.gated ? 3 : 2);
    EXPECT_EQ(matrices, 1 + config.num_hidden_layers * of_block);
  }
}

TEST_F(Quantized, WhatIsTakenIsCodesTimesScales) {
  const io::ModelConfig config = test::tiny_config();
  for (const std::int64_t group : {32, 64}) {
    SCOPED_TRACE(group);
    const QuantizedModel made = quantize(config, {.bits = 4, .group = group});
    const auto open = [&](bool keep_codes) {
      return ModelDirectory(to_.path(), io::load_config(to_.path()),
                            {.dtype = at::kFloat, .keep_codes = keep_codes});
    };
    const ModelDirectory opened = open(false), kept = open(true);
    EXPECT_FALSE(opened.config().quantization);
    std::int64_t codes = 0;
    for (const Parameter& parameter : parameters_of(opened.config())) {
      const at::Tensor numbers = opened.source().take(parameter);
      EXPECT_EQ(numbers.sizes(), at::IntArrayRef(parameter.shape));
      const at::Tensor taken = kept.source().take(parameter);
      const auto scheme = scheme_of(*made.config.quantization, parameter, "");
      if (!scheme) {
        EXPECT_TRUE(at::equal(taken, numbers)) << parameter.name;
        continue;
      }
      ++codes;
      EXPECT_EQ(taken.scalar_type(), scheme->bits == 8 ? at::kChar : at::kByte) << parameter.name;
      // A product with a unit vector is a number itself.
      const at::Tensor x = at::eye(numbers.size(1));
      Linear linear;
      linear.weight = parameter;
      linear.weight.tensor = taken;
      linear.pack(kept.source());
      EXPECT_TRUE(at::equal(linear(x), numbers.t())) << parameter.name;
    }
    EXPECT_EQ(codes, 1 + 7 * config.num_hidden_layers);
    opened.check_all_used();
    kept.check_all_used();
    opened.note_dequantized();
    ASSERT_EQ(notes_.size(), 1U) << "the same is said once";
    EXPECT_THAT(notes_[0], HasSubstr("GB in memory"));
  }
}

// On the sparse path codes are multiplied as they are stored. In f32 the dense path has the same
// numbers exactly.
TEST_F(Quantized, EveryArchitectureMultipliesWithItsCodes) {
  const c10::InferenceMode inference;
  for (const io::Architecture* const architecture : io::architectures()) {
    for (const int bits : {8, 4}) {
      SCOPED_TRACE(fmt::format("{}, int{}", architecture->name, bits));
      io::ModelConfig config = test::tiny_config();
      config.num_key_value_heads = config.num_attention_heads;
      config.architecture = architecture;
      config.block = architecture->block;
      config.gated = architecture->gated;
      config.mlp_bias = architecture->mlp_bias;
      quantize(config, {.bits = bits, .group = bits == 4 ? 32 : 0});
      const auto dense = load_model(to_.string(), {.path = FfnPath::dense, .dtype = at::kFloat});
      const auto sparse = load_model(to_.string(), {.path = FfnPath::sparse, .dtype = at::kFloat});
      const auto chosen = load_model(to_.string(), {.dtype = at::kFloat});
      EXPECT_EQ(chosen->feed_forward(0).path(), FfnPath::automatic);
      const at::Tensor tokens = at::arange(40).view({2, 20});
      const at::Tensor expected = dense->forward(tokens);
      for (const auto* model : {&sparse, &chosen}) {
        EXPECT_LE(test::largest_difference((*model)->forward(tokens), expected),
                  test::fp32_bound(config, 20, expected));
      }
      // A byte a number, heads of sums and scales; embedding, norms and biases in f32.
      std::int64_t codes = 0, others = 0;
      for (const Parameter& parameter : parameters_of(sparse->config())) {
        const std::int64_t numbers = c10::multiply_integers(parameter.shape);
        (parameter.kind == ParameterKind::matrix || parameter.kind == ParameterKind::residual_matrix
             ? codes
             : others) += numbers;
      }
      EXPECT_LE(static_cast<double>(sparse->weight_bytes()),
                1.2 * static_cast<double>(codes) + 4.0 * static_cast<double>(others));
    }
  }
}

TEST_F(Quantized, CodesWithBf16) {
  const c10::InferenceMode inference;
  for (const int bits : {8, 4}) {
    const io::ModelConfig config = test::tiny_config();
    quantize(config, {.bits = bits, .group = bits == 4 ? 32 : 0});
    const at::Tensor tokens = at::arange(40).view({2, 20});
    const at::Tensor exact =
        load_model(to_.string(), {.path = FfnPath::dense, .dtype = at::kFloat})->forward(tokens);
    const double size = exact.abs().max().item<double>();
    const auto sparse = load_model(to_.string(), {.dtype = at::kBFloat16});
    // Roundings of activations to 8 bits add up through three layers.
    EXPECT_LE(test::largest_difference(sparse->forward(tokens).to(at::kFloat), exact), 0.05 * size);
  }
}

}  // namespace
}  // namespace twell::lm
