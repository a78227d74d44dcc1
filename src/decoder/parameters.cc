// The parameters of the pieces that architectures share: names, shapes, other layouts.
#include "decoder/registry.h"

namespace twell::lm {

Linear linear_parameters(const std::string& prefix, std::int64_t out, std::int64_t in, bool bias,
                         ParameterKind kind) {
  Linear linear;
  linear.weight = {prefix + "weight", {out, in}, kind};
  if (bias) linear.bias = {prefix + "bias", {out}, ParameterKind::bias};
  return linear;
}

Attention attention_parameters(const std::string& prefix, const io::ModelConfig& c) {
  const std::int64_t width = c.hidden_size;
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  return {
      linear_parameters(prefix + "q_proj.", q, width, c.qkv_bias),
      linear_parameters(prefix + "k_proj.", kv, width, c.qkv_bias),
      linear_parameters(prefix + "v_proj.", kv, width, c.qkv_bias),
      linear_parameters(prefix + "o_proj.", width, q, c.o_bias, ParameterKind::residual_matrix)};
}

void set_ffn_parameters(const std::string& prefix, const io::ModelConfig& c, Block& block) {
  const auto linear = [&](const char* name, const char* sparse_lm_name, std::int64_t out,
                          std::int64_t in, ParameterKind kind) {
    Linear made = linear_parameters(prefix + name + ".", out, in, c.mlp_bias, kind);
    if (c.sparse_lm) {
      made.weight.other_names = {prefix + sparse_lm_name, prefix + sparse_lm_name + ".weight"};
      made.weight.maybe_transposed = true;
    }
    return made;
  };
  const std::int64_t width = c.hidden_size;
  const std::int64_t neurons = c.intermediate_size;
  if (c.gated) block.gate = linear("gate_proj", "GATE", neurons, width, ParameterKind::matrix);
  block.up = linear("up_proj", "UP", neurons, width, ParameterKind::matrix);
  block.down = linear("down_proj", "DOWN", width, neurons, ParameterKind::residual_matrix);
}

}  // namespace twell::lm
