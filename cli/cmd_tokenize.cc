// twell tokenize: texts to a token shard.
#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "corpus/bpe_trainer.h"
#include "corpus/corpus.h"
#include "corpus/text_files.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/run_directory.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeCommand : CommonOptions {
  std::vector<std::string> texts;
  std::string tokenizer;
  std::optional<std::int64_t> learn;
  std::string out;
};

// Learns a tokenizer from the texts and writes it beside the shard.
io::Tokenizer learn_tokenizer(const TokenizeCommand& o, const std::vector<fs::path>& files) {
  constexpr std::uint64_t kEnoughBytes = 32 << 20;
  const fs::path target = fs::absolute(o.out).parent_path() / "tokenizer.json";
  if (fs::exists(target)) {
    io::fail_file(target.string(), "is there already; move it away, or use it with --tokenizer");
  }
  Progress progress("learning a tokenizer", 0);
  const std::vector<std::string> texts = lm::sample_texts(files, kEnoughBytes);
  lm::BpeOptions options;
  options.vocab_size = *o.learn;
  const std::string json =
      lm::train_bpe(std::vector<std::string_view>(texts.begin(), texts.end()), options);
  io::write_file_atomically(target, json);
  progress.finish();
  o.say("Learnt a tokenizer: {}\n", target.string());
  return io::Tokenizer::from_json(json, target.string());
}

void run(TokenizeCommand& o) {
  if (o.learn.has_value() == !o.tokenizer.empty()) {
    io::fail_argument("--tokenizer", "give either --tokenizer PATH or --learn SIZE");
  }
  const std::vector<fs::path> files = lm::find_texts(
      std::vector<fs::path>(o.texts.begin(), o.texts.end()), {.shards = false, .leave_out = o.out});
  for (const fs::path& file : files) {
    std::error_code ignored;
    if (!fs::equivalent(file, o.out, ignored)) continue;
    io::fail_argument("--out", "is one of the texts of --text: {}", file.string());
  }
  const io::Tokenizer tokenizer =
      o.learn ? learn_tokenizer(o, files)
              : io::Tokenizer::load(io::resolve_model_directory(o.tokenizer));

  Progress progress("tokenizing", 100);
  std::uint64_t bytes = 0;
  const std::uint64_t tokens = lm::write_shard(o.out, files, tokenizer, [&](auto done, auto total) {
    bytes = total;
    progress.update(static_cast<std::int64_t>(100 * done / total));
  });
  progress.finish();
  const double ratio =
      static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(1, tokens));
  o.say("{}: {} of {}, {} of text, {:.2f} bytes a token\n", o.out,
        counted(static_cast<std::int64_t>(tokens), "token"), counted(std::ssize(files), "file"),
        format_bytes(static_cast<double>(bytes)), ratio);
  o.write({{"tokens", tokens},
           {"files", files.size()},
           {"bytes", bytes},
           {"bytes_per_token", ratio},
           {"vocab_size", tokenizer.vocab_size()},
           {"out", o.out}});
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto [c, o] = add_command<TokenizeCommand>(
      app, "tokenize", "Turn texts into a token shard for training",
      "twell tokenize --text books/ --tokenizer smollm2/tokenizer.json --out books.tokens", run);
  add_paths_option(c, "--text", o->texts, "Text files, or directories of them");
  c.add_option("--tokenizer", o->tokenizer, "tokenizer.json or a model directory")
      ->type_name("PATH");
  c.add_option("--learn", o->learn, "Learn a byte-level BPE of this size from the texts instead")
      ->check(in_range(257, 1 << 20))
      ->type_name("SIZE");
  o->writes(c.add_option("--out", o->out, "Token shard to write")->required()->type_name("FILE"),
            OutputKind::token_shard);
}

}  // namespace twell::cli
