// twell bench train: steps of training a whole model, PyTorch dense against sparse.
#include <array>
#include <mutex>
#include <optional>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/speed_table.h"
#include "cli/table.h"
#include "cli/train_options.h"
#include "device/device.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "files/run_directory.h"
#include "measure/fit.h"
#include "measure/step_bench.h"

namespace twell::cli {
namespace {

struct BenchTrainCommand : CommonOptions {
  std::string model, text;
  lm::Recipe recipe;
  lm::StepOptions steps;
  std::int64_t layers = 0;
  bool eager = true;
};

// Weights in fp32, as the optimizer has them.
std::unique_ptr<lm::Model> master_model(const BenchTrainCommand& o) {
  lm::LoadOptions options;
  options.dtype = at::kFloat;
  options.trainable = true;
  options.device = o.device;
  options.layers = o.layers;
  return lm::load_model(o.model, options);
}

std::int64_t choose_layers(const BenchTrainCommand& o, const io::ModelConfig& config) {
  if (o.layers > 0) return std::min(o.layers, config.num_hidden_layers);
  const auto need = lm::training_need(config, o.recipe.context, o.recipe.recompute);
  return lm::layers_that_fit(need, config.num_hidden_layers, lm::runtime_of(o.device).free_bytes(),
                             "--device " + o.device_name);
}

lm::TokenStream stream(const BenchTrainCommand& o, std::int64_t vocab) {
  const std::int64_t needed = o.recipe.tokens_per_step() + 1;
  const auto tokens = o.text.empty() ? random_tokens(needed, vocab, o.recipe.seed)
                                     : read_tokens(o.text, io::Tokenizer::load(o.model), needed);
  if (const std::int64_t window = o.recipe.context + 1; std::ssize(tokens) < window) {
    io::fail_argument("--text " + o.text, "has {} tokens, a window needs {}", tokens.size(),
                      window);
  }
  // A shorter text is read again.
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < needed; ++i) {
    const auto at = static_cast<std::size_t>(i % std::ssize(tokens));
    out.push_back(static_cast<std::int32_t>(tokens[at]));
  }
  return lm::TokenStream(std::move(out));
}

void print_sides(const BenchTrainCommand& o, const lm::StepComparison& result) {
  Table table(
      {"", "tokens/s", "step", "fastest", "slowest", "windows", "mJ/token", "memory", "speedup"});
  for (const lm::StepSide* side : result.sides()) {
    const auto [low, high] = std::ranges::minmax(side->seconds);
    const double step = lm::median(side->seconds);
    std::optional<double> mj, peak;
    if (side->joules) {
      mj = *side->joules * 1e3 / (static_cast<double>(side->steps) * result.tokens);
    }
    if (side->memory) peak = side->memory->peak;
    table.row({side->name, fmt::format("{:.0f}", result.tokens / step), format_us(step * 1e6),
               format_us(low * 1e6), format_us(high * 1e6), fmt::format("{}", side->micro_batch),
               energy_cell(mj), memory_cell(peak),
               side == &result.sparse ? "" : format_ratio(result.over_sparse(*side))});
  }
  o.say("\n{}", table.to_string(o.colour()));
}

void print_shares(const BenchTrainCommand& o, const nlohmann::json& json) {
  if (json["dense"]["share"].is_null()) return;
  Table table({"share of time", "dense", "sparse"});
  constexpr std::array<std::pair<const char*, const char*>, 4> kParts = {
      {{"feed_forward", "feed-forward layers"},
       {"head_and_loss", "head and loss"},
       {"optimizer", "optimizer"},
       {"rest", "attention and the rest"}}};
  for (const auto& [key, name] : kParts) {
    const auto share = [&](const char* side) {
      return fmt::format("{:.1f} %", 100 * json[side]["share"][key].get<double>());
    };
    table.row({name, share("dense"), share("sparse")});
  }
  o.say("\n{}", table.to_string(o.colour()));
}

void run(BenchTrainCommand& o) {
  o.model = io::resolve_model_directory(o.model).string();
  lm::Recipe& recipe = o.recipe;
  // Nothing moves, so that the activity stays what it is; the work is that of any other step.
  recipe.peak_lr = recipe.min_lr_ratio = recipe.l1 = 0.0;
  recipe.warmup_steps = 0;
  recipe.validation_fraction = 0.0;
  const io::ModelConfig whole = io::load_config(o.model);
  require_zeros(o.model, whole);
  const std::int64_t of_model = whole.num_hidden_layers;
  o.layers = choose_layers(o, whole);
  std::unique_ptr<lm::Model> model = master_model(o);
  const io::ModelConfig config = model->config();
  const lm::TokenStream tokens = stream(o, config.vocab_size);
  lm::Trainer trainer(std::move(model), recipe, {tokens, 0});
  std::optional<lm::EagerTraining> eager;
  if (o.eager && lm::EagerTraining::serves(trainer)) {
    eager.emplace(trainer, tokens);
  } else if (o.eager) {
    o.say("PyTorch eager is left out: it is written here for models built like Llama alone\n");
  }
  o.say_lines(
      "{}: {}{}, D = {}, H = {}, {}, {}, {} of {} a step{}", o.model,
      counted(config.num_hidden_layers, "layer"),
      config.num_hidden_layers == of_model ? std::string()
                                           : fmt::format(" of {} (--layers, or memory)", of_model),
      config.hidden_size, config.intermediate_size, lm::name_of(trainer.compute()),
      o.device.is_cpu() ? counted(o.threads, "thread") : lm::runtime_of(o.device).describe(),
      counted(recipe.micro_batch * recipe.accumulation, "window"), counted(recipe.context, "token"),
      recipe.recompute ? ", blocks computed twice" : "");
  Progress progress("measuring", lm::ticks(o.steps, eager.has_value()));
  std::int64_t done = 0;
  const nlohmann::json facts = {
      {"context", recipe.context},
      {"micro_batch", recipe.micro_batch},
      {"accumulation", recipe.accumulation},
      {"fit", o.steps.fit},
      {"repeats", o.steps.repeats},
      {"recompute", recipe.recompute},
      {"layers_of_model", of_model},
      {"layers_run", config.num_hidden_layers},
      {"compute", lm::name_of(trainer.compute())},
      {"device", o.device_name},
      {"text", o.text.empty() ? nlohmann::json(nullptr) : nlohmann::json(o.text)}};
  const auto all_of = [&facts](const lm::StepComparison& result) {
    nlohmann::json out = result.to_json();
    out.update(facts);
    return out;
  };
  std::mutex mutex;
  std::optional<lm::StepComparison> rounds;  // that are complete
  const io::LastWords last_words([&] {
    const std::lock_guard lock(mutex);
    if (!rounds) return;
    progress.clear();
    print_sides(o, *rounds);
    o.say("{} of {} rounds were measured\n", rounds->sparse.seconds.size(), o.steps.repeats);
    o.tell_so_far();
  });
  const lm::StepComparison result = lm::compare_steps(
      trainer, eager ? &*eager : nullptr, o.steps,
      [&](const std::string& what) { progress.update(++done, what); },
      [&](const lm::StepComparison& so_far) {
        const std::lock_guard lock(mutex);
        rounds = so_far;
        o.write_so_far(all_of(so_far));
      });
  progress.finish();
  nlohmann::json out = all_of(result);
  out["complete"] = true;
  print_sides(o, result);
  print_shares(o, out);
  o.say("\nSpeedup {:.2f}x (of single runs {:.2f} to {:.2f}), mean non-zeros {:.1f}\n",
        out["speedup"].get<double>(), out["speedup_min"].get<double>(),
        out["speedup_max"].get<double>(), result.nnz_mean);
  o.write(out);
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  auto [c, o] = add_command<BenchTrainCommand>(
      bench, "train",
      "Steps of training a whole model: sparse feed-forward layers against PyTorch's dense ones, "
      "and PyTorch eager",
      "twell bench train --model synth-0.5b --context 2048 --batch 1 --accumulation 4", run);
  lm::Recipe& r = o->recipe;
  r.micro_batch = 1;
  r.accumulation = 4;
  c.add_option("--model", o->model, "Weights to train, with a tokenizer where there is --text")
      ->required()
      ->type_name("DIR");
  c.add_option("--text", o->text, "Text to train on (default: random tokens)")->type_name("FILE");
  add_step_options(c, r);
  c.add_flag("--fit", o->steps.fit,
             "Passes of as many of the step's windows as fit into the memory");
  c.add_option("--repeats", o->steps.repeats, "Timed runs of each side")->check(in_range(1, 1000));
  c.add_option("--layers", o->layers, "Train the first so many layers (default: as many as fit)")
      ->check(kCounts);
  c.add_flag("--eager,!--no-eager", o->eager,
             "Beside PyTorch eager as well, as transformers trains");
  add_device_option(c, *o);
}

}  // namespace twell::cli
