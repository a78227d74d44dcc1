// Qwen2 and Qwen2.5: Llama's blocks; queries, keys and values always have biases, nothing else has.
#include "models/registry.h"

namespace twell::lm {

void visit_qwen2(const io::ModelConfig& config, DecoderWeights& weights,
                 const ParameterVisitor& visit) {
  io::ModelConfig qwen2 = config;
  qwen2.qkv_bias = true;
  qwen2.o_bias = false;
  qwen2.mlp_bias = false;
  visit_llama(qwen2, weights, visit);
}

}  // namespace twell::lm
