// generation_config.json of a Hugging Face model directory: how its makers choose tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace twell::io {

// Absent where the file says nothing, or null. The ids that end a text are ModelConfig's.
struct GenerationConfig {
  std::optional<bool> do_sample;  // false: always the likeliest token
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;

  // `file` names the source in messages. Throws Error (environment) for a value of another type or
  // out of range.
  static GenerationConfig from_json(std::string_view text, const std::string& file);
};

// Of a model's directory; empty where it has no such file.
GenerationConfig load_generation_config(const std::filesystem::path& directory);

}  // namespace twell::io
