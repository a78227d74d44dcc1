// Llama (1 to 3, SmolLM2, the paper's models): per block a norm, attention, a norm, and the
// feed-forward layer. Biases only where config.json has attention_bias or mlp_bias.
#include "models/registry.h"

namespace twell::lm {

void visit_llama(const io::ModelConfig& config, DecoderWeights& weights,
                 const ParameterVisitor& visit) {
  const std::vector<std::int64_t> width{config.hidden_size};
  visit_decoder(config, weights, visit, [&](const std::string& prefix, Block& block) {
    visit({prefix + "input_layernorm.weight", width, ParameterKind::norm}, block.attention_norm);
    visit_attention(prefix + "self_attn.", config, block.attention, visit);
    visit({prefix + "post_attention_layernorm.weight", width, ParameterKind::norm}, block.ffn_norm);
    visit_ffn(prefix + "mlp.", config, block.ffn_parameters, visit);
  });
}

}  // namespace twell::lm
