#include "cli/train_options.h"

#include <algorithm>
#include <optional>

#include "cli/progress.h"
#include "measure/machine.h"

namespace twell::cli {

namespace {

constexpr const char* kLength = "Length and batch";
constexpr const char* kExecution = "Execution";

}  // namespace

void add_step_options(CLI::App& command, lm::Recipe& r, std::string& compute) {
  const auto integer = [&command](const char* name, std::int64_t& value, const char* text) {
    command.add_option(name, value, text)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
        ->group(kLength);
  };
  integer("--context", r.context, "Tokens of a training window");
  integer("--batch", r.micro_batch, "Windows of one pass");
  integer("--accumulation", r.accumulation, "Passes of one step");
  command.add_option("--compute", compute, "bf16 (with fp32 master weights), fp32 or auto")
      ->check(CLI::IsMember({"bf16", "fp32", "auto"}))
      ->group(kExecution);
  command.add_flag("--recompute", r.recompute, "Keep less memory, compute blocks twice")
      ->group(kExecution);
}

void add_recipe_options(CLI::App& command, lm::Recipe& r, std::string& compute) {
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 40);
  const CLI::Range zero_or_more(std::int64_t{0}, std::int64_t{1} << 40);
  const auto integer = [&command](const char* name, std::int64_t& value, const char* text,
                                  const char* group, const CLI::Range& range) {
    command.add_option(name, value, text)->check(range)->group(group);
  };
  const auto number = [&command](const char* name, double& value, const char* text,
                                 const char* group) {
    command.add_option(name, value, text)->check(CLI::NonNegativeNumber)->group(group);
  };
  integer("--steps", r.steps, "Optimizer steps", kLength, count);
  add_step_options(command, r, compute);

  const char* optimizer = "Optimizer";
  number("--lr", r.peak_lr, "Peak learning rate", optimizer);
  number("--min-lr-ratio", r.min_lr_ratio, "Last learning rate, of the peak", optimizer);
  integer("--warmup", r.warmup_steps,
          "Steps of linear warm-up (at most a tenth of the run, unless given)", optimizer,
          zero_or_more);
  number("--beta1", r.beta1, "AdamW", optimizer);
  number("--beta2", r.beta2, "AdamW", optimizer);
  number("--eps", r.eps, "AdamW", optimizer);
  number("--weight-decay", r.weight_decay, "AdamW, on matrices", optimizer);
  number("--clip", r.clip, "Gradient norm; 0: none", optimizer);

  const char* sparsity = "Sparsity";
  number("--l1", r.l1, "Coefficient of the L1 term", sparsity);
  integer("--l1-start", r.l1_start, "Steps before the term sets in", sparsity, zero_or_more);
  integer("--l1-warmup", r.l1_warmup, "Steps over which it grows", sparsity, zero_or_more);
  integer("--reinit-every", r.reinit_every, "Steps between revivals of dead neurons; 0: never",
          sparsity, zero_or_more);
  number("--reinit-std", r.reinit_std, "Deviation of revived gate rows", sparsity);
  integer("--dead-window", r.dead_window, "Steps without firing that make a neuron dead", sparsity,
          count);

  command
      .add_option_function<std::string>(
          "--path", [&r](const std::string& path) { r.sparse = path == "sparse"; },
          "Feed-forward layers by what fires, or by PyTorch's dense operations")
      ->check(CLI::IsMember({"sparse", "dense"}))
      ->default_str("sparse")
      ->group(kExecution);
  command.add_option("--seed", r.seed, "Of weights and order")->group(kExecution);
  number("--time-budget", r.time_budget_s, "Shorten the run to this many seconds; 0: no limit",
         kExecution);

  const char* looks = "Log and checkpoints";
  integer("--log-every", r.log_every, "Steps of a log line", looks, count);
  integer("--eval-every", r.eval_every, "Steps between validations; 0: at the end", looks,
          zero_or_more);
  integer("--eval-windows", r.eval_windows, "Windows of a validation", looks, count);
  integer("--save-every", r.save_every, "Steps between checkpoints; 0: at the end", looks,
          zero_or_more);
  integer("--keep", r.keep_checkpoints, "Checkpoints to keep", looks, count);
}

void add_shape_options(CLI::App& command, io::ModelConfig& config) {
  const auto shape = [&command](const char* name, std::int64_t& value, const char* text) {
    command.add_option(name, value, text)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
        ->group("Shape of a new model");
  };
  shape("--layers", config.num_hidden_layers, "Layers");
  shape("--hidden", config.hidden_size, "Width D");
  shape("--ffn", config.intermediate_size, "Hidden units H");
  shape("--heads", config.num_attention_heads, "Attention heads");
  shape("--kv-heads", config.num_key_value_heads, "Key and value heads; 0: as many");
  shape("--vocab", config.vocab_size, "Vocabulary; 0: of the tokenizer");
  command.add_flag("--gated,!--no-gated", config.gated, "With a gate or without")
      ->group("Shape of a new model");
}

lm::TrainResult train_with_progress(lm::TrainRun& run,
                                    const std::function<bool(const lm::LogRecord&)>& keep_on) {
  if (!run.processes.first()) return lm::run_training(run);
  std::optional<Progress> progress;
  std::string stage;
  const auto enter = [&](const std::string& next, std::int64_t total) {
    if (next == stage) return;
    if (progress) progress->finish();
    progress.emplace(next, total);
    stage = next;
  };
  run.preparing = [&](const std::string& what, double share) {
    enter(what, 100);
    progress->update(static_cast<std::int64_t>(share * 100));
  };
  run.progress = [&](const lm::LogRecord& r) {
    enter("training", r.steps);
    if (!keep_on(r)) return false;
    const auto units = static_cast<double>(std::max<std::int64_t>(1, run.config.intermediate_size));
    progress->update(r.step,
                     fmt::format("loss {:.3f}, non-zeros {:.1f} ({:.1f} %), {:.0f} tokens/s", r.ce,
                                 r.nnz_mean, 100 * r.nnz_mean / units, r.tokens_per_s));
    return true;
  };
  lm::TrainResult result = lm::run_training(run);
  if (progress) progress->finish();
  return result;
}

nlohmann::json to_json(const lm::TrainResult& r) {
  return {
      {"steps", r.steps},           {"loss_first", r.loss_first},
      {"loss_last", r.loss_last},   {"validation_loss", measure::optional_json(r.validation_loss)},
      {"tokens", r.tokens},         {"tokens_per_s", r.tokens_per_s},
      {"parameters", r.parameters}, {"total_us", r.seconds * 1e6}};
}

}  // namespace twell::cli
