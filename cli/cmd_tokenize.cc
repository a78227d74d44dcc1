// twell tokenize: texts to a token shard.
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "io/atomic_file.h"
#include "io/token_shard.h"
#include "train/bpe_trainer.h"
#include "train/corpus.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeCommand : CommonOptions {
  std::vector<std::string> texts;
  std::string tokenizer;
  std::int64_t learn = 0;
  std::string out;
};

// Learns a tokenizer from the texts and writes it beside the shard.
io::Tokenizer learn_tokenizer(const TokenizeCommand& o, const std::vector<fs::path>& files) {
  constexpr std::uint64_t kEnoughBytes = 32 << 20;
  const fs::path target = fs::absolute(o.out).parent_path() / "tokenizer.json";
  if (fs::exists(target)) {
    throw Error(ErrorKind::environment, target.string(),
                "is there already; move it away, or use it with --tokenizer");
  }
  const std::vector<std::string> texts = lm::sample_texts(files, kEnoughBytes);
  lm::BpeOptions options;
  options.vocab_size = o.learn;
  const std::string json =
      lm::train_bpe(std::vector<std::string_view>(texts.begin(), texts.end()), options);
  io::write_file_atomically(target, json);
  o.say("Learnt a tokenizer: {}\n", target.string());
  return io::Tokenizer::from_json(json, target.string());
}

void run(TokenizeCommand& o) {
  if ((o.learn > 0) == !o.tokenizer.empty()) {
    throw Error(ErrorKind::invalid_argument, "--tokenizer",
                "give either --tokenizer PATH or --learn SIZE");
  }
  const std::vector<fs::path> files =
      lm::find_texts(std::vector<fs::path>(o.texts.begin(), o.texts.end()));
  const io::Tokenizer tokenizer =
      o.learn > 0 ? learn_tokenizer(o, files) : io::Tokenizer::load(o.tokenizer);

  io::TokenShardWriter shard(o.out, static_cast<std::uint32_t>(tokenizer.vocab_size()),
                             tokenizer.hash());
  Progress progress("tokenizing", static_cast<std::int64_t>(files.size()));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    progress.update(static_cast<std::int64_t>(i), files[i].filename().string());
    const std::string text = read_text(files[i].string());
    bytes += text.size();
    std::vector<std::int32_t> ids = tokenizer.encode(text, false);
    // Texts are documents; an end-of-text token keeps them apart.
    if (const auto end = tokenizer.eos_id()) ids.push_back(*end);
    shard.append(ids);
  }
  const std::uint64_t tokens = shard.size();
  shard.commit();
  progress.finish();
  const double ratio =
      static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(1, tokens));
  o.say("{}: {} tokens of {} files, {} of text, {:.2f} bytes a token\n", o.out, tokens,
        files.size(), format_bytes(static_cast<double>(bytes)), ratio);
  o.write({{"tokens", tokens},
           {"files", files.size()},
           {"bytes", bytes},
           {"bytes_per_token", ratio},
           {"vocab_size", tokenizer.vocab_size()},
           {"out", o.out}});
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto o = std::make_shared<TokenizeCommand>();
  CLI::App& c = add_command<TokenizeCommand>(
      app, "tokenize", "Turn texts into a token shard for training",
      "twell tokenize --text books/ --tokenizer smollm2/tokenizer.json --out books.tokens", o, run);
  c.add_option("--text", o->texts, "Text files, or directories of them")
      ->required()
      ->type_name("PATH");
  c.add_option("--tokenizer", o->tokenizer, "tokenizer.json or a model directory")
      ->type_name("PATH");
  c.add_option("--learn", o->learn, "Learn a byte-level BPE of this size from the texts instead")
      ->check(CLI::Range(std::int64_t{257}, std::int64_t{1} << 20))
      ->type_name("SIZE");
  c.add_option("--out", o->out, "Token shard to write")->required()->type_name("FILE");
}

}  // namespace twell::cli
