#include "decoder/registry.h"

#include "twell/status.h"

namespace twell::lm {

DecoderWeights weights_of(const io::ModelConfig& config) {
  switch (config.architecture) {
    case io::Architecture::llama:
    case io::Architecture::qwen2:  // Llama's blocks with qkv_bias, which checkpoint/config.cc sets
      return llama_weights(config);
  }
  throw Error(ErrorKind::unsupported, "load_model", "unknown architecture");
}

}  // namespace twell::lm
