// Tensors in memory to a Hugging Face directory.
#pragma once

#include <string>

#include "io/tokenizer.h"
#include "models/model.h"

namespace twell::cli {

// Writes config.json, model.safetensors and the tokenizer's files. `tensors`: all parameters of the
// model that `config` describes, as a trainable one or one of make_model has them; config.json gets
// their dtype. The directory appears whole or not at all.
void save_model(const std::string& directory, io::ModelConfig config,
                const lm::NamedTensors& tensors, const io::Tokenizer& tokenizer);

}  // namespace twell::cli
