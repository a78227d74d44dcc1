// twell convert: a model in the plain layout, in another element type, with its neurons in a better
// order; from and to GGUF files.
#include <torch/types.h>

#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/gguf_files.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "convert/neuron_order.h"
#include "files/file_error.h"
#include "files/run_directory.h"
#include "gguf/gguf_file.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertCommand : CommonOptions {
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
  std::optional<Progress> converting(std::in_place, "converting", 0);
  const auto model = lm::load_model(o.in, load);
  const fs::path words =
      o.tokenizer.empty() ? fs::path(o.in) : io::resolve_model_directory(o.tokenizer);
  const io::Tokenizer tokenizer = io::Tokenizer::load(words);
  io::SideFiles sides = io::SideFiles::read(o.in);
  if (!o.tokenizer.empty()) sides.replace_tokenizer(io::SideFiles::read(words));
  io::note_left_out(o.in, sides);
  if (!o.reorder) {
    save_model(o.out, model->config(), model->parameters(), tokenizer, sides);
    converting->finish();
    return nullptr;
  }
  converting.reset();
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
  o.say("{}", table.to_string(o.colour()));
  return {{"tokens", tokens.size()}, {"layers", layers}};
}

// To or from a GGUF file.
void convert_gguf(const ConvertCommand& o, bool from_gguf) {
  if (o.reorder) {
    io::fail_argument("--reorder", "is for directories, not for GGUF files");
  }
  const GgufConversion conversion = {
      .in = io::resolve_model_directory(o.in),
      .out = o.out,
      .tokenizer = o.tokenizer.empty() ? fs::path() : io::resolve_model_directory(o.tokenizer),
      .dtype = o.dtype,
      .allow_unused = o.allow_unused};
  if (from_gguf) {
    check_output_directory("--out", o.out);
    return convert_from_gguf(o, conversion);
  }
  if (std::error_code ignored; fs::exists(o.out, ignored)) {
    io::fail_file("--out " + o.out, "is there already: choose another name");
  }
  convert_to_gguf(o, conversion);
}

void run(ConvertCommand& o) {
  const bool to_gguf = fs::path(o.out).extension() == ".gguf";
  if (io::is_gguf(o.in)) {
    if (to_gguf) io::fail_file("--in " + o.in, "is a GGUF file already: convert it to a directory");
    return convert_gguf(o, /*from_gguf=*/true);
  }
  if (!fs::is_directory(o.in)) {
    io::fail_file("--in " + o.in, "{}",
                  fs::exists(o.in) ? "is neither a directory nor a GGUF file" : "does not exist");
  }
  if (to_gguf) return convert_gguf(o, /*from_gguf=*/false);
  if (o.dtype == "f16" || o.dtype == "q8_0") {
    io::fail_argument("--dtype " + o.dtype, "is for GGUF files");
  }
  check_output_directory("--out", o.out);
  o.in = io::resolve_model_directory(o.in).string();
  const nlohmann::json reordering = convert_directory(o);
  const io::ModelConfig config = io::load_config(o.out);
  o.say("{}: {}, D = {}, H = {}, {}, {}\n", o.out, counted(config.num_hidden_layers, "layer"),
        config.hidden_size, config.intermediate_size, io::name_of(config.hidden_act), config.dtype);
  o.write({{"out", o.out},
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
      "Write a model in the plain layout, in another element type, or with its neurons in a better "
      "order; read and write GGUF files",
      "twell convert model.gguf MODEL\n"
      "  twell convert --in MODEL --reorder --text text.txt --out REORDERED",
      run);
  c.add_option("in,--in", o->in, "Model directory, or GGUF file")->required()->type_name("PATH");
  c.add_option("--tokenizer", o->tokenizer, "Its tokenizer (default: that of the directory)")
      ->type_name("PATH");
  c.add_option("--dtype", o->dtype,
               "bf16, f32 or auto (as stored); from a GGUF file also f16, to one also f16 and q8_0")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "q8_0", "auto"}));
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
  c.add_option("out,--out", o->out, "Directory to make, or GGUF file (.gguf)")
      ->required()
      ->type_name("PATH");
}

}  // namespace twell::cli
