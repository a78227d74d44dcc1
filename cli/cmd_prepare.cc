// twell prepare: looks once at what a text does to a model's layers, and keeps it for every load.
#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "convert/prepare.h"

namespace twell::cli {
namespace {

struct PrepareCommand : ModelOptions {
  std::string text;
  std::int64_t max_tokens = 1024;
};

void run(PrepareCommand& o) {
  const auto tokens =
      named(o.model, [&] { return read_tokens(o.text, o.tokenizer(), o.max_tokens); });
  Progress progress("looking at the layers", 0);
  const lm::Prepared prepared = named(o.model, [&] {
    lm::LoadOptions load;
    load.dtype = parse_dtype(o.dtype);
    return lm::prepare_model(o.directory(), tokens, load);
  });
  progress.finish();
  Table table({"layer", "fire", "screen leaves", "gate on this processor"});
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t l = 0; l < prepared.layers.size(); ++l) {
    const LayerFindings& one = prepared.layers[l];
    table.row({fmt::format("{}", l), fmt::format("{:.2f} %", 100 * one.density()),
               one.candidates ? fmt::format("{:.2f} %", 100 * *one.candidates) : "-",
               name_of(prepared.forms[l])});
    layers.push_back({{"density", one.density()},
                      {"candidates", one.candidates ? nlohmann::json(*one.candidates) : nullptr},
                      {"gate", name_of(prepared.forms[l])}});
  }
  o.say("{} through {}\n\n{}\nWritten to {}: loading this model goes by it from now on\n",
        counted(std::ssize(tokens), "token"), counted(std::ssize(prepared.layers), "layer"),
        table.to_string(o.colour()), prepared.file);
  o.write({{"tokens", tokens.size()}, {"file", prepared.file}, {"layers", layers}});
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto [c, o] = add_command<PrepareCommand>(
      app, "prepare",
      "Look at what a text does to a model's layers, and keep it beside the model: every program "
      "that loads the model then starts with the faster gate form of each layer",
      "twell prepare --model twell-demo/model --text README.md", run);
  add_model_option(c, *o);
  c.add_option("--text", o->text, "Text file, of the kind that the model will read")
      ->required()
      ->type_name("FILE");
  c.add_option("--max-tokens", o->max_tokens, "Tokens of the text to use")
      ->check(in_range(32, 65536));
  add_dtype_option(c, *o);
}

}  // namespace twell::cli
