// The parameters of the pieces that architectures share: names, shapes, other layouts.
#include <fmt/format.h>

#include "models/decoder.h"

namespace twell::lm {

void visit_linear(const std::string& prefix, std::int64_t out, std::int64_t in, bool bias,
                  ParameterKind kind, Linear& linear, const ParameterVisitor& visit) {
  visit({prefix + "weight", {out, in}, kind}, linear.weight);
  if (bias) visit({prefix + "bias", {out}, ParameterKind::bias}, linear.bias);
}

void visit_attention(const std::string& prefix, const io::ModelConfig& c, Attention& attention,
                     const ParameterVisitor& visit) {
  attention.shape = {c.num_attention_heads, c.num_key_value_heads, c.head_dim};
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const auto matrix = ParameterKind::matrix;
  visit_linear(prefix + "q_proj.", q, c.hidden_size, c.qkv_bias, matrix, attention.q, visit);
  visit_linear(prefix + "k_proj.", kv, c.hidden_size, c.qkv_bias, matrix, attention.k, visit);
  visit_linear(prefix + "v_proj.", kv, c.hidden_size, c.qkv_bias, matrix, attention.v, visit);
  visit_linear(prefix + "o_proj.", c.hidden_size, q, c.o_bias, ParameterKind::residual_matrix,
               attention.o, visit);
}

void visit_ffn(const std::string& prefix, const io::ModelConfig& c, FfnParameters& ffn,
               const ParameterVisitor& visit) {
  const auto matrix = [&](const char* name, const char* sparse_lm_name, std::int64_t out,
                          std::int64_t in, ParameterKind kind, at::Tensor& tensor) {
    ParameterSpec spec{prefix + name + ".weight", {out, in}, kind};
    if (c.sparse_lm) {
      spec.other_names = {prefix + sparse_lm_name, prefix + sparse_lm_name + ".weight"};
      spec.maybe_transposed = true;
    }
    visit(spec, tensor);
  };
  const auto bias = [&](const char* name, std::int64_t width, at::Tensor& tensor) {
    if (c.mlp_bias) visit({prefix + name + ".bias", {width}, ParameterKind::bias}, tensor);
  };
  const std::int64_t neurons = c.intermediate_size;
  if (c.gated) {
    matrix("gate_proj", "GATE", neurons, c.hidden_size, ParameterKind::matrix, ffn.gate);
    bias("gate_proj", neurons, ffn.gate_bias);
  }
  matrix("up_proj", "UP", neurons, c.hidden_size, ParameterKind::matrix, ffn.up);
  bias("up_proj", neurons, ffn.up_bias);
  matrix("down_proj", "DOWN", c.hidden_size, neurons, ParameterKind::residual_matrix, ffn.down);
  bias("down_proj", c.hidden_size, ffn.down_bias);
}

void visit_decoder(const io::ModelConfig& config, DecoderWeights& weights,
                   const ParameterVisitor& visit,
                   const std::function<void(const std::string& prefix, Block&)>& visit_block) {
  visit({"model.embed_tokens.weight",
         {config.vocab_size, config.hidden_size},
         ParameterKind::embedding},
        weights.embedding);
  if (weights.blocks.empty()) {
    weights.blocks.resize(static_cast<std::size_t>(config.num_hidden_layers));
  }
  for (std::size_t layer = 0; layer < weights.blocks.size(); ++layer) {
    visit_block(fmt::format("model.layers.{}.", layer), weights.blocks[layer]);
  }
  visit({"model.norm.weight", {config.hidden_size}, ParameterKind::norm}, weights.final_norm);
  if (!config.tie_word_embeddings) {
    visit({"lm_head.weight", {config.vocab_size, config.hidden_size}, ParameterKind::matrix},
          weights.head);
  }
}

}  // namespace twell::lm
