// twell convert: other checkpoint layouts to a Hugging Face directory.
#include <torch/types.h>

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/save_model.h"
#include "cli/table.h"
#include "models/convert.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertCommand : CommonOptions {
  std::string from;
  std::string in;
  std::string tokenizer;
  std::string out;
  std::string dtype = "auto";
};

std::string guess_layout(const ConvertCommand& o) {
  if (!o.from.empty()) return o.from;
  if (fs::is_directory(o.in)) return "hf";
  return "llama2c";
}

// The released SparseLM layout, sharded files and other element types become the plain layout.
void convert_directory(const ConvertCommand& o) {
  lm::LoadOptions load;
  load.trainable = true;  // keeps every weight as it was stored
  load.dtype = parse_dtype(o.dtype);
  const auto model = lm::load_model(o.in, load);
  const fs::path words = o.tokenizer.empty() ? fs::path(o.in) : fs::path(o.tokenizer);
  save_model(o.out, *model, io::Tokenizer::load(words));
}

void run(ConvertCommand& o) {
  if (!fs::exists(o.in)) {
    throw Error(ErrorKind::environment, "--in " + o.in, "does not exist");
  }
  if (fs::exists(fs::path(o.out) / "config.json")) {
    throw Error(ErrorKind::environment, "--out " + o.out,
                "holds a model already; choose another directory");
  }
  const std::string layout = guess_layout(o);
  if (layout == "llama2c") {
    lm::convert_llama2c(o.in, o.tokenizer, o.out);
  } else {
    convert_directory(o);
  }
  const io::ModelConfig config = io::load_config(o.out);
  o.say("{}: {} layers, D = {}, H = {}, {}, {}\n", o.out, config.num_hidden_layers,
        config.hidden_size, config.intermediate_size, io::name_of(config.hidden_act), config.dtype);
  o.write({{"out", o.out},
           {"from", layout},
           {"layers", config.num_hidden_layers},
           {"hidden_size", config.hidden_size},
           {"intermediate_size", config.intermediate_size},
           {"hidden_act", io::name_of(config.hidden_act)}});
}

}  // namespace

void add_convert(CLI::App& app) {
  auto o = std::make_shared<ConvertCommand>();
  CLI::App& c = add_command<ConvertCommand>(
      app, "convert", "Turn another checkpoint layout into a Hugging Face directory",
      "twell convert --in stories260K.bin --tokenizer tok512.bin --out stories260K", o, run);
  c.add_option("--in", o->in, "Checkpoint: a llama2.c file, or a model directory")
      ->required()
      ->type_name("PATH");
  c.add_option("--from", o->from, "llama2c or hf (default: told by the input)")
      ->check(CLI::IsMember({"llama2c", "hf"}))
      ->type_name("LAYOUT");
  c.add_option("--tokenizer", o->tokenizer, "Its tokenizer (of hf: that of the directory)")
      ->type_name("PATH");
  c.add_option("--dtype", o->dtype, "bf16, f32 or auto (as stored); of model directories")
      ->check(CLI::IsMember({"bf16", "f32", "auto"}))
      ->capture_default_str();
  c.add_option("--out", o->out, "Directory to make")->required()->type_name("DIR");
}

}  // namespace twell::cli
