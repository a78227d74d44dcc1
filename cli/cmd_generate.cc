// twell generate: text from a model, as it comes.
#include <algorithm>

#include "cli/command.h"
#include "cli/model_files.h"
#include "engine/generate.h"
#include "files/file_error.h"
#include "measure/interrupt.h"

namespace twell::cli {
namespace {

struct GenerateCommand : ModelOptions {
  std::vector<std::string> prompts;
  std::string prompt_file;
  std::int64_t max_tokens = 128;
  double temperature = 0.8;
  double top_p = 0.95;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
};

struct Prompt {
  std::string source, text;  // source: what messages call it
};

std::vector<Prompt> prompt_texts(const GenerateCommand& o) {
  std::vector<Prompt> prompts;
  for (const std::string& text : o.prompts) prompts.push_back({"--prompt", text});
  if (!o.prompt_file.empty()) {
    prompts.push_back({"--prompt-file " + o.prompt_file, read_text(o.prompt_file)});
  }
  if (prompts.empty()) {
    io::fail_argument("--prompt", "missing; give a text to continue");
  }
  return prompts;
}

std::vector<std::vector<std::int64_t>> encode_prompts(const std::vector<Prompt>& texts,
                                                      const io::Tokenizer& tokenizer,
                                                      std::int64_t context) {
  std::vector<std::vector<std::int64_t>> prompts;
  for (const auto& [source, text] : texts) {
    if (text.empty()) {
      io::fail_argument(source, "is empty; give at least one character to continue");
    }
    const auto ids = encode_file(source, text, tokenizer);
    if (ids.empty()) {
      io::fail_argument(source, "gives no tokens: the tokenizer knows none of its characters");
    }
    if (static_cast<std::int64_t>(ids.size()) > context) {
      io::fail_argument(source, "has {} tokens, the model's context is {}; shorten the prompt",
                        ids.size(), context);
    }
    prompts.emplace_back(ids.begin(), ids.end());
  }
  return prompts;
}

void run(GenerateCommand& o) {
  const std::vector<Prompt> texts = prompt_texts(o);
  const io::Tokenizer tokenizer = o.tokenizer();
  const auto model = o.open();
  const auto prompts = encode_prompts(texts, tokenizer, model->config().max_position_embeddings);
  const bool stream = prompts.size() == 1;

  lm::GenerateOptions options;
  options.max_tokens = o.max_tokens;
  options.sampling = {o.temperature, o.top_k, o.top_p, o.seed};
  io::StreamDecoder decoder(tokenizer, true);
  options.on_token = [&](std::int64_t, std::int64_t token) {
    if (stream) o.say("{}", decoder.push(static_cast<std::int32_t>(token)));
    const bool unread = output_error() != 0 && o.json.empty();
    return !measure::interrupted() && !unread;
  };
  if (stream) {
    for (const std::int64_t id : prompts[0]) {
      o.say("{}", decoder.push(static_cast<std::int32_t>(id)));
    }
  }
  const lm::GenerateResult result =
      named(o.model, [&] { return lm::generate(*model, prompts, options); });
  if (stream) o.say("{}\n", decoder.finish());

  nlohmann::json sequences = nlohmann::json::array();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const lm::GeneratedSequence& sequence = result.sequences[i];
    const std::vector<std::int32_t> before(prompts[i].begin(), prompts[i].end());
    const std::vector<std::int32_t> ids(sequence.tokens.begin(), sequence.tokens.end());
    const std::string text = tokenizer.decode_behind(before, ids, true);
    if (!stream) o.say("--- {} ---\n{}{}\n", i + 1, texts[i].text, text);
    tokens += static_cast<std::int64_t>(ids.size());
    sequences.push_back({{"text", text},
                         {"tokens", ids.size()},
                         {"token_ids", ids},
                         {"finish", lm::name_of(sequence.finish)}});
  }
  measure::check_interrupt();
  const lm::GenerateTiming& t = result.timing;
  o.say("\n[{} prompt tokens at {:.1f} tokens/s, {} new tokens at {:.1f} tokens/s, {} layers]\n",
        t.prompt_tokens, t.prefill_tokens_per_s(), tokens, t.decode_tokens_per_s(),
        lm::name_of(model->feed_forward(0).path()));
  o.write({{"text", sequences[0]["text"]},
           {"tokens", tokens},
           {"prompt_tokens", t.prompt_tokens},
           {"prefill_tokens_per_s", t.prefill_tokens_per_s()},
           {"decode_tokens_per_s", t.decode_tokens_per_s()},
           {"prefill_us", t.prefill_seconds * 1e6},
           {"decode_us", t.decode_seconds * 1e6},
           {"path", lm::name_of(model->feed_forward(0).path())},
           {"sequences", sequences}});
}

}  // namespace

void add_generate(CLI::App& app) {
  auto [c, o] = add_command<GenerateCommand>(
      app, "generate", "Continue a text with a model",
      "twell generate --model twell-demo/model --prompt \"Once upon a time\" --max-tokens 64", run);
  add_model_option(c, *o);
  c.add_option("--prompt", o->prompts, "Text to continue; several make a batch")
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->default_str("");
  c.add_option("--prompt-file", o->prompt_file, "Read the text to continue from a file")
      ->type_name("FILE");
  c.add_option("--max-tokens", o->max_tokens, "New tokens of a text, at most")
      ->check(in_range(0, 1 << 30));
  c.add_option("--temperature", o->temperature, "0 always takes the likeliest token")
      ->check(in_range(0.0, 100.0));
  c.add_option("--top-p", o->top_p, "Only the likeliest tokens, up to this total probability")
      ->check(in_range(1e-6, 1.0));
  c.add_option("--top-k", o->top_k, "Only the k likeliest tokens; 0: all")->check(kZeroOrMore);
  add_seed_option(c, o->seed, "Seed; the same one gives the same text");
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
