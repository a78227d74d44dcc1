#include "cli/train_options.h"

#include <algorithm>
#include <optional>

#include "cli/progress.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "measure/machine.h"
#include "twell/status.h"

namespace twell::cli {

namespace {

constexpr const char* kLength = "Length and batch";
constexpr const char* kExecution = "Execution";

// A value of a recipe as its option has it.
std::string shown(const std::string& field, const nlohmann::json& value) {
  if (field == "sparse") return value.get<bool>() ? "sparse" : "dense";
  if (value.is_string() && value.get<std::string>().empty()) {
    return field == "model" ? "random weights" : "none";
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

CLI::Validator range_of(const char* field) {
  const auto [least, most] = lm::Recipe::range_of(field);
  return in_range(least, most);
}

CLI::Option* add_l1_stages(CLI::App& command, lm::Recipe& r) {
  const auto check = [](const std::string& text) -> std::string {
    try {
      lm::parse_l1_stages(text);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  return command
      .add_option_function<std::string>(
          "--l1-stages", [&r](const std::string& text) { r.l1_stages = lm::parse_l1_stages(text); },
          "Coefficients of the L1 term in these steps, linear between them, in place of the three")
      ->check(CLI::Validator(check, ""))
      ->type_name("STEP:COEFFICIENT,...");
}

}  // namespace

FieldOptions add_step_options(CLI::App& command, lm::Recipe& r) {
  FieldOptions out;
  const auto integer = [&](const char* name, const char* field, std::int64_t& value,
                           const char* text) {
    out.emplace_back(command.add_option(name, value, text)->check(range_of(field))->group(kLength),
                     field);
  };
  integer("--context", "context", r.context, "Tokens of a training window");
  integer("--batch", "micro_batch", r.micro_batch, "Windows of one pass");
  integer("--accumulation", "accumulation", r.accumulation, "Passes of one step");
  const auto compute = [&r](const std::string& type) { r.compute = lm::parse_compute_type(type); };
  out.emplace_back(command
                       .add_option_function<std::string>(
                           "--compute", compute, "bf16 (with fp32 master weights), fp32 or auto")
                       ->check(CLI::IsMember({"bf16", "fp32", "auto"}))
                       ->default_str("auto")
                       ->group(kExecution),
                   "compute");
  out.emplace_back(
      command.add_flag("--recompute", r.recompute, "Use less memory: compute blocks twice")
          ->group(kExecution),
      "recompute");
  return out;
}

FieldOptions add_recipe_options(CLI::App& command, lm::Recipe& r) {
  FieldOptions out = add_step_options(command, r);
  const auto add = [&](const char* name, const char* field, auto& value, const char* text,
                       const char* group) {
    out.emplace_back(command.add_option(name, value, text)->check(range_of(field))->group(group),
                     field);
    return out.back().first;
  };
  add("--steps", "steps", r.steps, "Optimizer steps", kLength);

  const char* optimizer = "Optimizer";
  add("--lr", "peak_lr", r.peak_lr, "Peak learning rate", optimizer);
  add("--min-lr-ratio", "min_lr_ratio", r.min_lr_ratio,
      "Last learning rate, as a share of the peak", optimizer);
  add("--warmup", "warmup_steps", r.warmup_steps,
      "Steps of linear warm-up (at most a tenth of the run, unless given)", optimizer);
  add("--beta1", "beta1", r.beta1, "AdamW: decay of the first moment", optimizer);
  add("--beta2", "beta2", r.beta2, "AdamW: decay of the second moment", optimizer);
  add("--eps", "eps", r.eps, "AdamW: added to the denominator", optimizer);
  add("--weight-decay", "weight_decay", r.weight_decay, "AdamW: weight decay of matrices",
      optimizer);
  add("--clip", "clip", r.clip, "Largest norm of the gradient; 0: no limit", optimizer);

  const char* sparsity = "Sparsity";
  const auto own_l1 = {
      add("--l1", "l1", r.l1, "Coefficient of the L1 term", sparsity),
      add("--l1-start", "l1_start", r.l1_start, "Steps before the L1 term begins", sparsity),
      add("--l1-warmup", "l1_warmup", r.l1_warmup, "Steps over which the L1 term grows", sparsity)};
  out.emplace_back(add_l1_stages(command, r)->group(sparsity), "l1_stages");
  for (CLI::Option* option : own_l1) option->excludes(out.back().first);
  add("--reinit-every", "reinit_every", r.reinit_every,
      "Steps between revivals of dead neurons; 0: never", sparsity);
  add("--reinit-std", "reinit_std", r.reinit_std, "Standard deviation of revived gate rows",
      sparsity);
  add("--dead-window", "dead_window", r.dead_window, "Steps without firing that make a neuron dead",
      sparsity);

  const auto path = [&r](const std::string& name) { r.sparse = name == "sparse"; };
  out.emplace_back(
      command
          .add_option_function<std::string>(
              "--path", path, "Path of the feed-forward layers: sparse multiplies only what fires")
          ->check(CLI::IsMember({"sparse", "dense"}))
          ->default_str("sparse")
          ->group(kExecution),
      "sparse");
  out.emplace_back(add_seed_option(command, r.seed, "Seed of weights and order")->group(kExecution),
                   "seed");
  add("--time-budget", "time_budget_s", r.time_budget_s,
      "Shorten the run to this many seconds; 0: no limit", kExecution);

  const char* looks = "Log and checkpoints";
  add("--log-every", "log_every", r.log_every, "Steps between log lines", looks);
  add("--eval-every", "eval_every", r.eval_every, "Steps between validations; 0: at the end",
      looks);
  add("--eval-windows", "eval_windows", r.eval_windows, "Windows of a validation", looks);
  add("--save-every", "save_every", r.save_every, "Steps between checkpoints; 0: at the end",
      looks);
  add("--keep", "keep_checkpoints", r.keep_checkpoints, "Checkpoints to keep", looks);
  return out;
}

FieldOptions add_shape_options(CLI::App& command, io::ModelConfig& config) {
  const char* group = "Shape of a new model";
  FieldOptions out;
  const auto shape = [&](const char* name, const char* field, std::int64_t& value, const char* text,
                         int least) {
    out.emplace_back(
        command.add_option(name, value, text)->check(in_range(least, 1 << 20))->group(group),
        field);
  };
  shape("--layers", "num_hidden_layers", config.num_hidden_layers, "Layers", 1);
  shape("--width", "hidden_size", config.hidden_size, "Width D of a token", 1);
  shape("--neurons", "intermediate_size", config.intermediate_size, "Neurons H of a layer", 1);
  shape("--heads", "num_attention_heads", config.num_attention_heads, "Attention heads", 1);
  shape("--kv-heads", "num_key_value_heads", config.num_key_value_heads,
        "Key and value heads; 0: as many as --heads", 0);
  shape("--vocab", "vocab_size", config.vocab_size, "Vocabulary; 0: of the tokenizer", 0);
  out.emplace_back(
      command.add_flag("--gated,!--no-gated", config.gated, "With a gate or without")->group(group),
      "twell_gated");
  return out;
}

lm::Recipe resumed_recipe(const FieldOptions& options, const lm::Recipe& given,
                          const lm::Recipe& saved, std::vector<std::string>& changes) {
  const auto now = nlohmann::json::parse(given.to_json());
  auto out = nlohmann::json::parse(saved.to_json());
  for (const auto& [option, field] : options) {
    if (option->count() == 0 || now[field] == out[field]) continue;
    if (field == "compute" && given.compute == lm::ComputeType::automatic) continue;
    const std::string name = option->get_name(), before = shown(field, out[field]);
    if (field == "steps") {
      io::fail_argument(name, "the run has {}, {} is asked for: --extend-to changes it", before,
                        given.steps);
    }
    if (!lm::Recipe::may_change(field)) {
      io::fail_argument(name, "the run has {}, {} is asked for: a resumed run cannot change it",
                        before, shown(field, now[field]));
    }
    changes.push_back(fmt::format("{} {} (before: {})", name, shown(field, now[field]), before));
    out[field] = now[field];
  }
  return lm::Recipe::from_json(out.dump(), "recipe");
}

void check_shape(const FieldOptions& options, const io::ModelConfig& given,
                 const std::string& directory) {
  const auto now = nlohmann::json::parse(given.to_json());
  const auto model = nlohmann::json::parse(io::load_config(directory).to_json());
  const auto value = [](const nlohmann::json& config, const std::string& field) {
    return config.value(field, nlohmann::json(true));  // twell_gated stands there where it is false
  };
  for (const auto& [option, field] : options) {
    auto mine = value(now, field);
    const auto theirs = value(model, field);
    if (mine == 0 && field == "num_key_value_heads") mine = model["num_attention_heads"];
    if (option->count() == 0 || mine == theirs || mine == 0) continue;  // 0: of the tokenizer
    io::fail_argument(option->get_name(), "the model in {} has {}, {} is asked for: leave it out",
                      directory, theirs.dump(), mine.dump());
  }
}

lm::TrainResult train_with_progress(lm::TrainRun& run,
                                    const std::function<void(const lm::LogRecord&)>& record) {
  run.stop = io::interrupted;
  std::optional<io::Unhurried> until_saved;
  run.begins = [&] {
    until_saved.emplace(
        "stopping when the present step is done and saved; another signal ends it at once");
  };
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
    if (record) record(r);
    if (io::interrupted()) return;  // update() would unwind the run before its checkpoint
    const auto units = static_cast<double>(std::max<std::int64_t>(1, run.config.intermediate_size));
    progress->update(r.step,
                     fmt::format("loss {:.3f}, non-zeros {:.1f} ({:.1f} %), {:.0f} tokens/s", r.ce,
                                 r.nnz_mean, 100 * r.nnz_mean / units, r.tokens_per_s));
  };
  lm::TrainResult result = lm::run_training(run);
  if (progress) progress->finish();
  return result;
}

nlohmann::json to_json(const lm::TrainResult& r) {
  return {{"steps", r.steps},
          {"loss_first", lm::optional_json(r.loss_first)},
          {"loss_last", lm::optional_json(r.loss_last)},
          {"validation_loss", lm::optional_json(r.validation_loss)},
          {"tokens", r.tokens},
          {"tokens_per_s", r.loss_last ? nlohmann::json(r.tokens_per_s) : nullptr},
          {"parameters", r.parameters},
          {"total_us", r.seconds * 1e6}};
}

}  // namespace twell::cli
