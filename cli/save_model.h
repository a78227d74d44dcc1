// A model in memory to a Hugging Face directory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/tokenizer.h"
#include "models/model.h"

namespace twell::cli {

// Writes config.json, model.safetensors and the tokenizer's files. The model must hold all of its
// parameters (trainable, or made by make_model). The directory appears whole or not at all.
// `changed`, if given, makes of each parameter what is written instead of it; `hidden_units`, if
// not 0, is the size of the feed-forward layers that this results in.
void save_model(const std::string& directory, const lm::Model& model,
                const io::Tokenizer& tokenizer,
                const std::function<at::Tensor(const at::Tensor&)>& changed = {},
                std::int64_t hidden_units = 0);

}  // namespace twell::cli
