// How tokens are chosen, by what the command line says, else by what generation_config.json says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "engine/generate.h"

namespace twell::cli {

struct SamplingChoice {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> max_tokens;
  std::uint64_t seed = 1;
  std::vector<std::string> stop;  // texts that end one

  // Where neither says anything: temperature 0.8, top_p 0.95, `most_tokens`, nothing else. `model`
  // is a directory, whose stop_strings become `stop` where there is none. A note tells what it asks
  // for in vain.
  lm::GenerateOptions of(const std::filesystem::path& model, std::int64_t most_tokens);
};

void add_sampling_options(CLI::App& command, SamplingChoice& choice);

}  // namespace twell::cli
