// A Hugging Face directory as a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/config.h"
#include "gguf/block_types.h"

namespace twell::io {

struct ExportOptions {
  // Of matrices: f32, f16, bf16 or q8_0, which needs rows of a multiple of 32 (others are bf16).
  // None: as stored; codes of 8 bits with a scale for 32 numbers become q8_0 as they are, other
  // codes bf16. All else is f32, as llama.cpp wants it.
  std::optional<BlockType> type = {};
  std::filesystem::path tokenizer = {};  // a directory; empty: the model's
  bool allow_unused = false;             // leave out tensors that config.json has no use for
  std::function<void(std::int64_t done, std::int64_t total, const std::string& tensor)>
      on_progress = {};
};

// By types, as stored and in the file ("BF16", "Q8_0"): tensors and numbers.
struct ExportedPart {
  std::int64_t tensors = 0, numbers = 0;
};
struct ExportedModel {
  ModelConfig config;
  std::string architecture;  // llama.cpp's name for it
  std::map<std::pair<std::string, std::string>, ExportedPart> parts;
};

// The file appears whole or not at all; in memory are a few rows. The same bytes every time. Throws
// Error naming file and key or tensor, unsupported where llama.cpp computes no such model.
ExportedModel export_gguf(const std::filesystem::path& from, const std::filesystem::path& to,
                          const ExportOptions& options);

}  // namespace twell::io
