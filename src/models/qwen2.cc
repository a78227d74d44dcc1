// Qwen2 and Qwen2.5: Llama's blocks; queries, keys and values always have biases, nothing else has.
#include "models/registry.h"

namespace twell::lm {

DecoderWeights qwen2_weights(const io::ModelConfig& config) {
  io::ModelConfig qwen2 = config;
  qwen2.qkv_bias = true;
  qwen2.o_bias = false;
  qwen2.mlp_bias = false;
  return llama_weights(qwen2);
}

}  // namespace twell::lm
