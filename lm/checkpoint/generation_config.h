// generation_config.json of a Hugging Face model directory: how its makers choose tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

// Added to a token's logit at the first `steps` new tokens of a text; −∞: it is not chosen there.
struct TokenBias {
  std::int64_t token = 0;
  double amount = 0.0;
  std::int64_t steps = INT64_MAX;
};

// Absent where the file says nothing, or null. The ids that end a text are ModelConfig's.
struct GenerationConfig {
  std::optional<bool> do_sample;  // false: always the likeliest token
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;  // 0: all
  std::optional<std::int64_t> max_new_tokens;
  std::int64_t min_new_tokens = 0;  // before a text may end
  std::vector<TokenBias> biases;    // suppress_tokens and the like, of single tokens
  std::vector<std::string> stop_strings;
  std::vector<std::string> unheeded;  // keys that ask for what is not done here

  // `file` names the source in messages. Throws Error (environment) for a value of another type or
  // out of range.
  static GenerationConfig from_json(std::string_view text, const std::string& file);
};

// Of a model's directory; empty where it has no such file.
GenerationConfig load_generation_config(const std::filesystem::path& directory);

}  // namespace twell::io
