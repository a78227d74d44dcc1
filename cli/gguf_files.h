// twell convert, of a GGUF file to a model's directory and back.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"

namespace twell::cli {

struct GgufConversion {
  std::filesystem::path in, out;
  std::filesystem::path tokenizer;  // a directory with another one; empty: the model's own
  std::string dtype = "auto";
  bool allow_unused = false;
};

// Both write what they make whole or not at all, tell what became of which weights, and write the
// results of --json.
void convert_from_gguf(const CommonOptions& common, const GgufConversion& conversion);
void convert_to_gguf(const CommonOptions& common, const GgufConversion& conversion);

}  // namespace twell::cli
