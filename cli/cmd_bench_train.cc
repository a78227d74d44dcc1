// twell bench train: steps of training a whole model, PyTorch dense against sparse.
#include <array>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/train_options.h"
#include "measure/step_bench.h"
#include "train/run_directory.h"

namespace twell::cli {
namespace {

struct BenchTrainCommand : CommonOptions {
  std::string model, text;
  lm::Recipe recipe;
  int repeats = 3;
};

// Weights in fp32, as the optimizer has them.
std::unique_ptr<lm::Model> master_model(const std::string& directory) {
  lm::LoadOptions options;
  options.dtype = at::kFloat;
  options.trainable = true;
  return lm::load_model(directory, options);
}

std::vector<std::int32_t> stream(const BenchTrainCommand& o, std::int64_t vocab) {
  const std::int64_t needed = o.recipe.tokens_per_step() + 1;
  const auto tokens = o.text.empty() ? random_tokens(needed, vocab, o.recipe.seed)
                                     : read_tokens(o.text, io::Tokenizer::load(o.model), needed);
  return {tokens.begin(), tokens.end()};
}

void print(const BenchTrainCommand& o, const nlohmann::json& json) {
  Table table({"", "dense", "sparse"});
  const auto row = [&](const char* name, const auto& show) {
    table.row({name, show(json["dense"]), show(json["sparse"])});
  };
  row("tokens/s", [](const nlohmann::json& side) {
    return fmt::format("{:.0f}", side["tokens_per_s"].get<double>());
  });
  row("step", [](const nlohmann::json& side) { return format_us(side["step_us"].get<double>()); });
  if (!json["peak_bytes_ratio"].is_null()) {
    const auto bytes = [](const nlohmann::json& side, const char* key) {
      return side[key].get<double>();
    };
    row("peak memory",
        [&](const nlohmann::json& side) { return format_bytes(bytes(side, "peak_bytes")); });
    row("of that, the step's own", [&](const nlohmann::json& side) {
      return format_bytes(bytes(side, "peak_bytes") - bytes(side, "base_bytes"));
    });
  }
  constexpr std::array<std::pair<const char*, const char*>, 4> kParts = {
      {{"feed_forward", "feed-forward layers"},
       {"head_and_loss", "head and loss"},
       {"optimizer", "optimizer"},
       {"rest", "attention and the rest"}}};
  for (const auto& [key, name] : kParts) {
    row(name, [key = key](const nlohmann::json& side) {
      return fmt::format("{:.1f} %", 100 * side["share"][key].get<double>());
    });
  }
  o.say("\n{}\nSpeedup {:.2f}x (of single steps {:.2f} to {:.2f}), mean non-zeros {:.1f}\n",
        table.to_string(), json["speedup"].get<double>(), json["speedup_min"].get<double>(),
        json["speedup_max"].get<double>(), json["nnz_mean"].get<double>());
}

void run(BenchTrainCommand& o) {
  o.model = lm::resolve_model_directory(o.model).string();
  lm::Recipe& recipe = o.recipe;
  // Nothing moves, so that the activity stays what it is; the work is that of any other step.
  recipe.peak_lr = recipe.min_lr_ratio = recipe.l1 = 0.0;
  recipe.warmup_steps = 0;
  recipe.validation_fraction = 0.0;
  std::unique_ptr<lm::Model> model = master_model(o.model);
  const io::ModelConfig config = model->config();
  lm::TrainingData data{lm::TokenStream(stream(o, config.vocab_size)), 0};
  lm::Trainer trainer(std::move(model), recipe, std::move(data));
  o.say("{}: {} layers, D = {}, H = {}, {}, {} threads, {} x {} x {} tokens a step\n", o.model,
        config.num_hidden_layers, config.hidden_size, config.intermediate_size,
        lm::name_of(trainer.compute()), o.threads, recipe.accumulation, recipe.micro_batch,
        recipe.context);
  Progress progress("measuring", 2 * o.repeats + measure::kOtherSteps);
  std::int64_t done = 0;
  const measure::StepComparison result = measure::compare_steps(
      trainer, o.repeats, [&](const std::string& what) { progress.update(++done, what); });
  progress.finish();
  nlohmann::json out = result.to_json();
  print(o, out);
  out.update({{"context", recipe.context},
              {"micro_batch", recipe.micro_batch},
              {"accumulation", recipe.accumulation},
              {"recompute", recipe.recompute},
              {"compute", lm::name_of(trainer.compute())},
              {"text", o.text.empty() ? nlohmann::json(nullptr) : nlohmann::json(o.text)}});
  o.write(out);
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  auto [c, o] = add_command<BenchTrainCommand>(
      bench, "train",
      "Steps of training a whole model: PyTorch's dense feed-forward layers against sparse ones",
      "twell bench train --model synth-0.5b --context 2048 --batch 1 --accumulation 4", run);
  lm::Recipe& r = o->recipe;
  r.micro_batch = 1;
  r.accumulation = 4;
  c.add_option("--model", o->model, "Weights to train, with a tokenizer where there is --text")
      ->required()
      ->type_name("DIR");
  c.add_option("--text", o->text, "Text to train on (default: random tokens)")->type_name("FILE");
  add_step_options(c, r);
  c.add_option("--repeats", o->repeats, "Timed steps of each side")->check(in_range(1, 1000));
}

}  // namespace twell::cli
