// twell convert: other checkpoint layouts to a Hugging Face directory.
#include <torch/types.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "engine/neuron_order.h"
#include "io/file_error.h"
#include "models/convert.h"
#include "train/run_directory.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertCommand : CommonOptions {
  std::string from;
  std::string in;
  std::string tokenizer;
  std::string out;
  std::string dtype = "auto";
  bool reorder = false;
  bool allow_unused = false;
  bool keep_all = false;
  std::string text;
  std::int64_t max_tokens = 8192;
};

// The released SparseLM layout, sharded files and other element types become the plain layout.
nlohmann::json convert_directory(const ConvertCommand& o) {
  lm::LoadOptions load;
  load.trainable = true;  // keeps every weight as it was stored
  load.dtype = parse_dtype(o.dtype);
  load.allow_unused = o.allow_unused;
  const auto model = lm::load_model(o.in, load);
  const fs::path words =
      o.tokenizer.empty() ? fs::path(o.in) : lm::resolve_model_directory(o.tokenizer);
  const io::Tokenizer tokenizer = io::Tokenizer::load(words);
  io::SideFiles sides = io::SideFiles::read(o.in);
  if (!o.tokenizer.empty()) sides.replace_tokenizer(io::SideFiles::read(words));
  io::note_left_out(o.in, sides);
  if (!o.reorder) {
    save_model(o.out, model->config(), model->parameters(), tokenizer, sides);
    return nullptr;
  }
  const auto tokens = read_tokens(o.text, tokenizer, o.max_tokens);
  Progress progress("watching neurons", static_cast<std::int64_t>(tokens.size()));
  lm::ScoreOptions watch;
  watch.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  const auto orders = lm::order_neurons(*model, tokens, !o.keep_all, watch);
  progress.finish();
  io::ModelConfig config = model->config();
  config.intermediate_size = static_cast<std::int64_t>(orders.front().neurons.size());
  save_model(o.out, config, lm::reordered(*model, orders), tokenizer, sides);

  Table table({"layer", "removed", "silent", "blocks of 16 a token", "before"});
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t l = 0; l < orders.size(); ++l) {
    const lm::LayerOrder& order = orders[l];
    table.row({fmt::format("{}", l), fmt::format("{}", order.removed),
               fmt::format("{}", order.silent), fmt::format("{:.1f}", order.blocks_after),
               fmt::format("{:.1f}", order.blocks_before)});
    layers.push_back({{"removed", order.removed},
                      {"silent", order.silent},
                      {"blocks_before", order.blocks_before},
                      {"blocks_after", order.blocks_after}});
  }
  o.say("{}", table.to_string());
  return {{"tokens", tokens.size()}, {"layers", layers}};
}

void run(ConvertCommand& o) {
  if (!fs::exists(o.in)) {
    io::fail_file("--in " + o.in, "does not exist");
  }
  check_output_directory("--out", o.out);
  o.in = lm::resolve_model_directory(o.in).string();
  const std::string layout = !o.from.empty() ? o.from : fs::is_directory(o.in) ? "hf" : "llama2c";
  nlohmann::json reordering;
  if (o.reorder && layout == "llama2c") {
    io::fail_argument("--reorder", "needs a model directory; convert the llama2.c file first");
  }
  if (layout == "llama2c") {
    lm::AtomicDirectory target{o.out};
    lm::convert_llama2c(o.in, o.tokenizer, target.temporary());
    target.commit();
  } else {
    reordering = convert_directory(o);
  }
  const io::ModelConfig config = io::load_config(o.out);
  o.say("{}: {} layers, D = {}, H = {}, {}, {}\n", o.out, config.num_hidden_layers,
        config.hidden_size, config.intermediate_size, io::name_of(config.hidden_act), config.dtype);
  o.write({{"out", o.out},
           {"from", layout},
           {"layers", config.num_hidden_layers},
           {"hidden_size", config.hidden_size},
           {"intermediate_size", config.intermediate_size},
           {"hidden_act", io::name_of(config.hidden_act)},
           {"reorder", reordering}});
}

}  // namespace

void add_convert(CLI::App& app) {
  auto [c, o] = add_command<ConvertCommand>(
      app, "convert",
      "Turn another checkpoint layout into a Hugging Face directory, or put neurons in a better "
      "order",
      "twell convert --in stories260K.bin --tokenizer tok512.bin --out stories260K", run);
  c.add_option("--in", o->in, "Checkpoint: a llama2.c file, or a model directory")
      ->required()
      ->type_name("PATH");
  c.add_option("--from", o->from, "llama2c or hf (default: told by the input)")
      ->check(CLI::IsMember({"llama2c", "hf"}))
      ->type_name("LAYOUT");
  c.add_option("--tokenizer", o->tokenizer, "Its tokenizer (of hf: that of the directory)")
      ->type_name("PATH");
  c.add_option("--dtype", o->dtype, "bf16, f32 or auto (as stored); of model directories")
      ->check(CLI::IsMember({"bf16", "f32", "auto"}));
  add_unused_option(c, o->allow_unused);
  CLI::Option* text =
      c.add_option("--text", o->text, "Text to watch the neurons on")->type_name("FILE");
  CLI::Option* reorder = c.add_flag(
      "--reorder", o->reorder,
      "Put neurons that fire together side by side, and leave out those that cannot have any "
      "effect; outputs stay the same but for the order of summation");
  reorder->needs(text);
  text->needs(reorder);
  c.add_flag("--keep-all", o->keep_all, "Leave out no neuron when reordering")->needs(reorder);
  c.add_option("--max-tokens", o->max_tokens, "Tokens of the text to use; 0: all")
      ->check(kZeroOrMore)
      ->needs(reorder);
  c.add_option("--out", o->out, "Directory to make")->required()->type_name("DIR");
}

}  // namespace twell::cli
