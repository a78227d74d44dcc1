// twell generate: text from a model, as it comes.
#include <algorithm>
#include <deque>
#include <iostream>
#include <iterator>
#include <sstream>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/sampling.h"
#include "cli/text_stream.h"
#include "engine/generate.h"
#include "files/file_error.h"
#include "files/interrupt.h"

namespace twell::cli {
namespace {

struct GenerateCommand : ModelOptions {
  std::vector<std::string> prompts;
  std::string prompt_file, prompt_lines;
  SamplingChoice sampling;
};

struct Prompt {
  std::string source, text;  // source: what messages call it
};

std::vector<Prompt> prompt_texts(const GenerateCommand& o) {
  std::vector<Prompt> prompts;
  for (const std::string& text : o.prompts) {
    if (text == "-") {
      const std::string read(std::istreambuf_iterator<char>(std::cin), {});
      prompts.push_back({"standard input", with_plain_lines(read)});
    } else {
      prompts.push_back({"--prompt", text});
    }
  }
  if (!o.prompt_file.empty()) {
    prompts.push_back(
        {"--prompt-file " + o.prompt_file, with_plain_lines(read_text(o.prompt_file))});
  }
  if (!o.prompt_lines.empty()) {
    std::istringstream lines(with_plain_lines(read_text(o.prompt_lines)));
    std::int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      prompts.push_back({fmt::format("line {} of --prompts {}", ++number, o.prompt_lines), line});
    }
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
    if (const auto why = why_no_text(text); !why.empty()) io::fail_argument(source, "{}", why);
    const auto ids = tokenizer.encode(text);
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
  lm::GenerateOptions options = o.sampling.of(o.location(), 128);
  const auto model = o.open();
  const auto prompts = encode_prompts(texts, tokenizer, model->config().max_position_embeddings);
  const bool alone = prompts.size() == 1;

  std::deque<TextStream> streams;  // they do not move
  for (const auto& prompt : prompts) streams.emplace_back(tokenizer, prompt, o.sampling.stop);
  options.on_token = [&](std::int64_t sequence, std::int64_t token) {
    TextStream& stream = streams[static_cast<std::size_t>(sequence)];
    const std::string piece = stream.push(token);
    if (alone) o.say("{}", piece);
    const bool unread = output_error() != 0 && o.json.empty();
    return !io::interrupted() && !unread && !stream.stopped();
  };
  if (alone) o.say("{}", streams[0].prompt());
  const lm::GenerateResult result =
      named(o.model, [&] { return lm::generate(*model, prompts, options); });

  nlohmann::json sequences = nlohmann::json::array();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const lm::GeneratedSequence& sequence = result.sequences[i];
    const std::string rest = streams[i].finish();
    if (alone) {
      o.say("{}\n", rest);
    } else {
      o.say("--- {} ---\n{}{}\n", i + 1, texts[i].text, streams[i].text());
    }
    tokens += std::ssize(sequence.tokens);
    sequences.push_back(
        {{"text", streams[i].text()},
         {"tokens", sequence.tokens.size()},
         {"token_ids", sequence.tokens},
         {"finish", streams[i].stopped() ? "stop_string" : lm::name_of(sequence.finish)}});
  }
  io::check_interrupt();
  const lm::GenerateTiming& t = result.timing;
  put(stderr, fmt::format("\n[{} at {:.1f} tokens/s, {} at {:.1f} tokens/s, path {}]\n",
                          counted(t.prompt_tokens, "prompt token"), t.prefill_tokens_per_s(),
                          counted(tokens, "new token"), t.decode_tokens_per_s(),
                          lm::name_of(model->feed_forward(0).path())));
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
  c.add_option("--prompt", o->prompts, "Text to continue; several make a batch; -: standard input")
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->default_str("");
  c.add_option("--prompt-file", o->prompt_file, "Read the text to continue from a file")
      ->type_name("FILE");
  c.add_option("--prompts", o->prompt_lines, "Continue each line of a file, all as one batch")
      ->type_name("FILE");
  c.add_option("--max-tokens", o->sampling.max_tokens,
               "New tokens of a text, at most (the model's, or 128)")
      ->check(in_range(0, 1 << 30));
  add_sampling_options(c, o->sampling);
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
