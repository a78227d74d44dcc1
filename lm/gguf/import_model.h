// A GGUF file as a Hugging Face directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

namespace twell::io {

struct ImportOptions {
  // None: as stored, as far as safetensors can. The linear layers' codes are kept where all of them
  // are in symmetric blocks (Q8_0, Q5_0, Q4_0), and all else is then F32: nothing is rounded.
  // Other quantised weights become BF16, and a model of floating-point numbers keeps its type.
  std::optional<SafeDType> dtype = {};
  bool allow_unused = false;  // leave out tensors and keys that are not known
  bool tokenizer = true;      // write the file's
  std::function<void(std::int64_t done, std::int64_t total, const std::string& tensor)>
      on_progress = {};
};

// By types, in the file and as written ("Q4_K", "BF16"; "Q8_0", "int8, groups of 32").
struct ImportedPart {
  std::int64_t tensors = 0, numbers = 0;
};
struct ImportedModel {
  ModelConfig config;
  std::map<std::pair<std::string, std::string>, ImportedPart> parts;
  bool rounded = false;  // numbers of quantised weights
};

// Writes everything into `to`, tensor by tensor: in memory is one, and the tokenizer. The same
// bytes every time. Throws Error naming the file and the key or tensor.
ImportedModel import_gguf(const std::filesystem::path& from, const std::filesystem::path& to,
                          const ImportOptions& options);

}  // namespace twell::io
