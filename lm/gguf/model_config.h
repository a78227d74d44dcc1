// config.json and generation_config.json from a GGUF file's metadata, and back.
#pragma once

#include <string>

#include "checkpoint/config.h"
#include "gguf/gguf_file.h"
#include "gguf/model_tensors.h"

namespace twell::io {

class GgufWriter;

// Sizes, rotary embeddings, biases and ids of a file's model, as `as` computes it; without dtype
// and quantisation. A key of the architecture that is not known is an error, because it may ask for
// another computation; with `allow_unknown` it is left out. Throws Error naming file and key.
ModelConfig config_of(const GgufFile& file, const GgufArchitecture& as, bool allow_unknown);

// The ids in `generation_config.json`; empty where the file names none.
std::string generation_config_of(const ModelConfig& config);

// Sizes and rotary embeddings; `file` is that of the configuration. Throws Error (unsupported)
// where GGUF files cannot say it. Ids are the tokenizer's.
void write_config(const ModelConfig& config, const GgufArchitecture& as, const std::string& file,
                  GgufWriter& out);
// Of llama3's scaling the numbers of the tensor kRopeFactors; empty: there is none.
std::vector<float> rope_factors(const ModelConfig& config);

}  // namespace twell::io
