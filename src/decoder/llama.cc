// Llama (1 to 3, SmolLM2, the paper's models): per block a norm, attention, a norm, and the
// feed-forward layer. Biases only where config.json has attention_bias or mlp_bias.
#include <fmt/format.h>

#include "decoder/registry.h"

namespace twell::lm {

DecoderWeights llama_weights(const io::ModelConfig& config) {
  const auto norm = [&](const std::string& name) {
    return Parameter{name, {config.hidden_size}, ParameterKind::norm};
  };
  const std::vector<std::int64_t> table{config.vocab_size, config.hidden_size};
  DecoderWeights weights;
  weights.embedding = {"model.embed_tokens.weight", table, ParameterKind::embedding};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    Block& block = weights.blocks.emplace_back();
    block.attention_norm = norm(prefix + "input_layernorm.weight");
    block.attention = attention_parameters(prefix + "self_attn.", config);
    block.ffn_norm = norm(prefix + "post_attention_layernorm.weight");
    set_ffn_parameters(prefix + "mlp.", config, block);
  }
  weights.final_norm = norm("model.norm.weight");
  if (config.tie_word_embeddings) {
    weights.embedding.other_names = {"lm_head.weight"};  // where a file has the tied one as this
  } else {
    weights.head = {"lm_head.weight", table, ParameterKind::matrix};
  }
  return weights;
}

}  // namespace twell::lm
