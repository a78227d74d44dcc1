// twell train: a sparse language model from text, or a model made sparse.
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "cli/command.h"
#include "cli/train_options.h"
#include "files/interrupt.h"
#include "files/note.h"
#include "files/run_directory.h"
#include "train/run.h"

namespace twell::cli {
namespace {

// Options that only Python has now.
constexpr std::array<std::pair<const char*, const char*>, 6> kRemoved = {
    {{"--teacher", "twell.hf.DistillationTrainer"},
     {"--hidden-weight", "twell.hf.DistillationTrainer"},
     {"--teacher-temperature", "twell.hf.DistillationTrainer"},
     {"--anneal", "twell.hf.AnnealingCallback"},
     {"--share", "twell.hf.ThresholdCallback"},
     {"--share-steps", "twell.hf.ThresholdCallback"}}};

struct TrainCommand : CommonOptions {
  lm::TrainRun run;
  std::vector<std::string> data;
  std::string out, tokenizer, cache, activation;
  FieldOptions recipe_options, shape_options;
  std::optional<std::int64_t> extend_to;
  bool resume = false;
  bool warmup_given = false;
};

nlohmann::json layers_json(const std::vector<lm::LayerActivity>& layers) {
  nlohmann::json out = nlohmann::json::array();
  for (const lm::LayerActivity& layer : layers) {
    out.push_back({{"nnz_mean", layer.nnz_mean},
                   {"nnz_max", layer.nnz_max},
                   {"dead_fraction", layer.dead_fraction}});
  }
  return out;
}

// The recipe to go on with, in place of `saved`.
lm::Recipe take_up(const TrainCommand& o, const std::filesystem::path& checkpoint,
                   const lm::Recipe& saved) {
  std::vector<std::string> changes;
  lm::Recipe recipe = resumed_recipe(o.recipe_options, o.run.recipe, saved, changes);
  check_shape(o.shape_options, o.run.config, checkpoint.string());
  if (o.extend_to && *o.extend_to != saved.length()) {
    changes.push_back(fmt::format("--extend-to {} (before: {})", *o.extend_to, saved.length()));
    recipe.extend(*o.extend_to);
  }
  if (!o.run.processes.first()) return recipe;
  for (const std::string& change : changes) o.say("Resuming with {}\n", change);
  return recipe;
}

void run_command(TrainCommand& o) {
  lm::TrainRun& run = o.run;
  run.processes = lm::Processes::started();
  if (!run.processes.first()) io::set_note_sink({});  // they read the same files
  run.out = o.out;
  run.data.assign(o.data.begin(), o.data.end());
  run.cache = o.cache;
  run.device = o.device;
  std::string& start = run.recipe.model;
  if (!start.empty()) start = std::filesystem::weakly_canonical(start).string();
  if (!o.tokenizer.empty()) run.tokenizer = io::resolve_model_directory(o.tokenizer);
  if (!o.activation.empty()) run.activation = io::hidden_act_of(o.activation);
  if (o.resume) {
    run.resume = [&o](const auto& checkpoint, const lm::Recipe& saved) {
      return take_up(o, checkpoint, saved);
    };
  } else if (!run.recipe.model.empty()) {
    check_shape(o.shape_options, run.config, io::resolve_model_directory(run.recipe.model));
  }
  run.config.max_position_embeddings = run.recipe.context;
  // The paper's warm-up is for long runs.
  if (!o.warmup_given && !o.resume) {
    run.recipe.warmup_steps = std::min(run.recipe.warmup_steps, run.recipe.steps / 10);
  }
  run.config.hidden_act = run.activation.value_or(io::HiddenAct::relu);

  const lm::TrainResult result = train_with_progress(run);
  if (!run.processes.first()) return;  // the first one tells
  if (io::interrupted()) {
    o.say("Stopped after step {}; {} holds it, --resume continues\n", result.steps,
          result.checkpoint.string());
    io::check_interrupt();
  }

  if (result.loss_last) {
    const double neurons = static_cast<double>(result.neurons);
    o.say("{}, {}, {:.0f} tokens/s, {:.2f} million parameters\n", counted(result.steps, "step"),
          counted(result.tokens, "token"), result.tokens_per_s,
          static_cast<double>(result.parameters) / 1e6);
    o.say("Cross entropy {:.3f} at first, {:.3f} at last", *result.loss_first, *result.loss_last);
    if (result.validation_loss) o.say(", {:.3f} on held-out text", *result.validation_loss);
    o.say("\nNon-zeros per token: {:.1f} of {} ({:.2f} %)\n", result.nnz_mean, result.neurons,
          100 * result.nnz_mean / neurons);
  } else {
    o.say("The run has done its {}; --extend-to N goes on\n", counted(result.steps, "step"));
  }
  o.say("Model: {}\nLog: {}\n", result.checkpoint.string(), (run.out / "log.jsonl").string());
  nlohmann::json out = to_json(result);
  out.update({{"nnz_mean", result.loss_last ? nlohmann::json(result.nnz_mean) : nullptr},
              {"neurons", result.neurons},
              {"layers", layers_json(result.layers)},
              {"checkpoint", result.checkpoint.string()}});
  o.write(out);
}

}  // namespace

void add_train(CLI::App& app) {
  auto [c, o] = add_command<TrainCommand>(
      app, "train", "Train a sparse model from text, or continue from a checkpoint",
      "twell train --data books/ --out run --layers 8 --width 512 --neurons 1408 --steps 2000 "
      "--context 512",
      run_command);
  io::ModelConfig& config = o->run.config;
  config.num_hidden_layers = 8;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_attention_heads = 8;
  config.block.norm.eps = 1e-5;
  config.block.positions.theta = 100000;
  config.tie_word_embeddings = true;
  add_device_option(c, *o);
  add_paths_option(c, "--data", o->data, "Text files, token shards, or directories of them");
  c.add_option("--out", o->out, "Directory of log and checkpoints")->required()->type_name("DIR");
  CLI::Option* model =
      c.add_option("--model", o->run.recipe.model, "Start from these weights, not random ones")
          ->type_name("DIR");
  std::vector<std::string> activations = activation_names();
  activations.emplace_back("silu");
  c.add_option("--activation", o->activation,
               "Activation, also in place of that of --model; silu trains a dense model")
      ->check(CLI::IsMember(activations))
      ->type_name("NAME");
  CLI::Option* tokenizer =
      c.add_option("--tokenizer", o->tokenizer, "Tokenizer (default: that of --model, else learnt)")
          ->type_name("PATH");
  CLI::Option* learnt = c.add_option("--bpe-vocab", o->run.recipe.bpe_vocab,
                                     "Entries of the tokenizer that is learnt")
                            ->check(in_range(257, 1 << 20))
                            ->excludes(tokenizer)
                            ->excludes(model);
  CLI::Option* validation =
      c.add_option("--validation", o->run.recipe.validation_fraction, "Share of the text held out")
          ->check(in_range(0.0, 0.5));
  c.add_option("--cache", o->cache, "Directory of token ids (default: OUT/cache)")
      ->type_name("DIR");
  CLI::Option* resume =
      c.add_flag("--resume", o->resume, "Continue from the latest checkpoint in OUT");
  c.add_option("--extend-to", o->extend_to, "With --resume: the new number of steps")
      ->check(kPositive)
      ->needs(resume);
  o->shape_options = add_shape_options(c, config);
  o->recipe_options = add_recipe_options(c, o->run.recipe);
  o->recipe_options.insert(
      o->recipe_options.end(),
      {{model, "model"}, {learnt, "bpe_vocab"}, {validation, "validation_fraction"}});
  for (const auto& [name, instead] : kRemoved) {
    add_removed_option(c, name, fmt::format("in Python there is {} (docs/training.md)", instead));
  }
  c.parse_complete_callback([o, &c] { o->warmup_given = c.count("--warmup") > 0; });
}

}  // namespace twell::cli
