// Quantised models: which layers have how many bits, and what is read of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/architecture.h"
#include "checkpoint/config.h"
#include "decoder/model_directory.h"
#include "decoder/parameters.h"
#include "engine/quantize_model.h"
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
    EXPECT_EQ(matrices, 1 + config.num_hidden_layers * (config.gated ? 7 : 6));
  }
}

TEST_F(Quantized, WhatIsTakenIsCodesTimesScales) {
  const io::ModelConfig config = test::tiny_config();
  const QuantizedModel made = quantize(config, {.bits = 4, .group = 32});
  const ModelDirectory opened(to_.path(), io::load_config(to_.path()), {.dtype = at::kFloat});
  EXPECT_FALSE(opened.config().quantization);
  std::int64_t quantised = 0;
  for (const Parameter& parameter : parameters_of(opened.config())) {
    const auto codes = opened.source().take_quantized(parameter);
    const at::Tensor numbers = opened.source().take(parameter);
    ASSERT_EQ(codes.has_value(), scheme_of(*made.config.quantization, parameter, "").has_value());
    if (!codes) continue;
    ++quantised;
    EXPECT_EQ(codes->codes.scalar_type(), at::kChar);
    const std::int64_t groups = codes->scales.size(1);
    const at::Tensor product = codes->codes.to(at::kFloat).view({numbers.size(0), groups, -1}) *
                               codes->scales.unsqueeze(-1);
    EXPECT_TRUE(at::equal(product.view_as(numbers), numbers)) << parameter.name;
    EXPECT_EQ(codes->codes.abs().max().item<int>() <= 8, codes->scheme.bits == 4);
  }
  EXPECT_EQ(quantised, 1 + config.num_hidden_layers * 7);
  opened.check_all_used();
  opened.note_dequantized();
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_THAT(notes_[0], HasSubstr("GB in memory"));
}

}  // namespace
}  // namespace twell::lm
