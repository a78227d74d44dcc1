#include "cli/sampling.h"

#include <fmt/ranges.h>

#include "checkpoint/generation_config.h"
#include "cli/model_files.h"
#include "files/file_error.h"
#include "files/note.h"

namespace twell::cli {

lm::GenerateOptions SamplingChoice::of(const std::filesystem::path& model,
                                       std::int64_t most_tokens) {
  const io::GenerationConfig said = io::load_generation_config(model);
  const auto first = [](const auto& asked, const auto& found, auto otherwise) {
    return asked ? *asked : found.value_or(otherwise);
  };
  lm::GenerateOptions options;
  lm::SamplingOptions& out = options.sampling;
  // As in transformers, what a file says of sampling holds where it does not say not to sample.
  const bool greedy = said.do_sample.has_value() && !*said.do_sample;
  out.temperature = first(temperature, greedy ? std::optional(0.0) : said.temperature, 0.8);
  out.top_p = first(top_p, said.top_p, 0.95);
  out.top_k = first(top_k, said.top_k, std::int64_t{0});
  out.min_p = first(min_p, said.min_p, 0.0);
  out.repetition_penalty = first(repetition_penalty, said.repetition_penalty, 1.0);
  out.seed = seed;
  out.biases = said.biases;
  out.validate();
  options.max_tokens = first(max_tokens, said.max_new_tokens, most_tokens);
  options.min_tokens = said.min_new_tokens;
  for (const std::string& text : stop) {
    if (const auto why = why_no_text(text); !why.empty()) io::fail_argument("--stop", "{}", why);
  }
  if (stop.empty()) stop = said.stop_strings;
  if (!said.unheeded.empty()) {
    io::note(fmt::format("{}: {} {} not heeded here", (model / "generation_config.json").string(),
                         fmt::join(said.unheeded, ", "), said.unheeded.size() > 1 ? "are" : "is"));
  }
  return options;
}

void add_sampling_options(CLI::App& command, SamplingChoice& choice) {
  // What stands here in brackets holds where generation_config.json says nothing.
  command
      .add_option("--temperature", choice.temperature,
                  "0 always takes the likeliest token (the model's, or 0.8)")
      ->check(in_range(0.0, 100.0));
  command
      .add_option("--top-p", choice.top_p,
                  "Only the likeliest tokens, up to this total probability (the model's, or 0.95)")
      ->check(in_range(0.0, 1.0));
  command
      .add_option("--top-k", choice.top_k,
                  "Only the k likeliest tokens; 0: all (the model's, or 0)")
      ->check(kZeroOrMore);
  command
      .add_option(
          "--min-p", choice.min_p,
          "Only tokens at least so many times as likely as the likeliest (the model's, or 0)")
      ->check(in_range(0.0, 1.0));
  command
      .add_option("--repetition-penalty", choice.repetition_penalty,
                  "Above 1: tokens that were there already are less likely (the model's, or 1)")
      ->check(in_range(1e-6, 1e6));
  command
      .add_option("--stop", choice.stop,
                  "Text that ends an answer, and is not part of it; several may be given")
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->default_str("")
      ->check(CLI::Validator([](std::string& text) { return text.empty() ? "is empty" : ""; }, ""));
  add_seed_option(command, choice.seed, "Seed; the same one gives the same text");
}

}  // namespace twell::cli
