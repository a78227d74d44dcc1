#include "models/registry.h"

#include "twell/status.h"

namespace twell::lm {

DecoderWeights weights_of(const io::ModelConfig& config) {
  switch (config.architecture) {
    case io::Architecture::llama:
      return llama_weights(config);
    case io::Architecture::qwen2:
      return qwen2_weights(config);
  }
  throw Error(ErrorKind::unsupported, "load_model", "unknown architecture");
}

}  // namespace twell::lm
