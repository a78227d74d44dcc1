// A model in memory to a Hugging Face directory.
#pragma once

#include <string>

#include "io/tokenizer.h"
#include "models/model.h"

namespace twell::cli {

// Writes config.json, model.safetensors and the tokenizer's files. The model must hold all of its
// parameters (trainable, or made by make_model). The directory appears whole or not at all.
void save_model(const std::string& directory, const lm::Model& model,
                const io::Tokenizer& tokenizer);

}  // namespace twell::cli
