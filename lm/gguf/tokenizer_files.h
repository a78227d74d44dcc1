// The tokenizer in a GGUF file's metadata as tokenizer.json and tokenizer_config.json, and back.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/config.h"
#include "gguf/metadata.h"
#include "tokenizer/tokenizer.h"

namespace twell::io {

class GgufWriter;

struct TokenizerFiles {
  std::string tokenizer;  // tokenizer.json
  std::string config;     // tokenizer_config.json, with the chat template
};

// Of both kinds that the engine has: byte pairs of bytes ("gpt2"), whose words are cut by a
// pre-tokenizer that is known, and of characters ("llama", SentencePiece's), whose merges are found
// from the scores. Throws Error naming file and key: unsupported for other kinds, environment where
// the values contradict each other.
TokenizerFiles tokenizer_files_of(const GgufMetadata& values, const ModelConfig& config);

// Puts the tokenizer of a model's directory, and its chat template, among a file's values. Throws
// Error (unsupported) where llama.cpp has none that does the same.
void write_tokenizer(const std::filesystem::path& directory, const ModelConfig& config,
                     GgufWriter& out);

}  // namespace twell::io
