// Other checkpoint layouts to Hugging Face directories. No tensors are loaded into a model.
#pragma once

#include <filesystem>

namespace twell::lm {

// llama2.c checkpoint -> `out` with config.json, model.safetensors (fp32) and, where `tokenizer`
// (tokenizer.bin) is not empty, the tokenizer. `out` is made if absent. Throws twell::Error.
void convert_llama2c(const std::filesystem::path& checkpoint,
                     const std::filesystem::path& tokenizer, const std::filesystem::path& out);

}  // namespace twell::lm
