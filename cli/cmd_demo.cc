// twell demo: the point of the project in one go. Trains a small sparse model on a text, compares
// the dense and the sparse path on the same weights, writes some text and a report.
#include <torch/types.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/demo_files.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/table.h"
#include "cli/train_options.h"
#include "corpus/corpus.h"
#include "corpus/text_files.h"
#include "engine/ffn_statistics.h"
#include "engine/generate.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "measure/model_compare.h"
#include "train/demo_recipe.h"
#include "twell/device.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct DemoCommand : CommonOptions {
  std::vector<std::string> texts;
  std::string out = "twell-demo";
  double minutes = 4.5;
  std::optional<std::int64_t> steps;
  std::string prompt;
  std::int64_t max_tokens = 96;
  double temperature = 0.8;
  std::uint64_t seed = 1;
  std::optional<std::int64_t> layers, width, neurons, context, batch, bpe_vocab;
};

// What comes after training, on two cores: comparing, and writing text and the report.
constexpr double kRestSeconds = 20;

// The demo's recipe with what was asked for on the command line.
lm::TrainRun make_run(const DemoCommand& o) {
  lm::TrainRun run = lm::demo_run();
  run.data.assign(o.texts.begin(), o.texts.end());
  run.cache = fs::path(o.out) / "cache";
  run.recipe.seed = o.seed;
  const auto set = [](std::int64_t& value, std::optional<std::int64_t> given) {
    value = given.value_or(value);
  };
  set(run.config.num_hidden_layers, o.layers);
  set(run.config.hidden_size, o.width);
  set(run.config.intermediate_size, o.neurons);
  if (o.width) {
    run.config.num_attention_heads = std::max<std::int64_t>(1, *o.width / 64);
    run.config.num_key_value_heads = run.config.head_dim = 0;
  }
  set(run.recipe.context, o.context);
  set(run.recipe.micro_batch, o.batch);
  set(run.recipe.bpe_vocab, o.bpe_vocab);
  if (o.steps) {
    run.recipe.warmup_steps = std::min(run.recipe.warmup_steps, *o.steps / 10);
    run.recipe.l1_warmup = std::min(run.recipe.l1_warmup, *o.steps / 4);
    run.recipe.l1_start = std::min(run.recipe.l1_start, *o.steps / 10);
    run.recipe.steps = *o.steps;
    run.recipe.time_budget_s = 0;
  } else {
    run.recipe.time_budget_s = std::max(o.minutes * 60 - kRestSeconds, o.minutes * 30);
  }
  run.config.max_position_embeddings =
      std::max(run.config.max_position_embeddings, run.recipe.context);
  return run;
}

lm::TrainResult train(const DemoCommand& o, lm::TrainRun& run, std::vector<lm::LogRecord>& log) {
  lm::TrainResult result =
      train_with_progress(run, [&log](const lm::LogRecord& record) { log.push_back(record); });
  io::check_interrupt();
  o.say("  cross entropy {:.2f} -> {:.2f}, {:.1f} of {} neurons fire per token ({:.1f} %)\n",
        *result.loss_first, *result.loss_last, result.nnz_mean, result.neurons,
        100 * result.nnz_mean / static_cast<double>(result.neurons));
  return result;
}

struct Models {
  std::unique_ptr<lm::Model> plain, prepacked, sparse;
};

// Speed, non-zeros and errors of the trained model, into the report.
void measure(const ModelOptions& open, const Models& models, std::span<const std::int64_t> tokens,
             DemoReport& report) {
  const std::int64_t context = models.sparse->config().max_position_embeddings;
  lm::CompareOptions options;
  options.decode_tokens = std::min<std::int64_t>(32, std::max<std::int64_t>(1, context / 4));
  options.prompt_tokens =
      std::min<std::int64_t>({512, context - options.decode_tokens,
                              static_cast<std::int64_t>(tokens.size()) - options.decode_tokens});
  options.measure.repeats = 7;
  const lm::Sides sides = {
      {{"plain weights", models.plain.get()}, {"oneDNN prepacked", models.prepacked.get()}},
      nullptr,
      models.sparse.get()};
  Progress progress("comparing dense and sparse", 2 * 3 * options.measure.repeats);
  std::int64_t done = 0;
  report.speed = lm::compare_speed(sides, tokens, options,
                                   [&](const std::string& what) { progress.update(++done, what); });
  report.nnz_mean = lm::measure_ffn(*models.sparse, tokens).nnz_mean();
  progress.finish();

  const auto prompt = tokens.first(static_cast<std::size_t>(options.prompt_tokens));
  const LogitErrors errors = logit_errors(open, *models.plain, *models.sparse, prompt, true);
  report.max_rel_err = errors.max_rel_err;
  report.dense_error = *errors.dense;
  report.sparse_error = *errors.sparse;
  report.bound = lm::logits_error_bound(models.sparse->layers(), models.sparse->dtype());
}

void write_sample(const DemoCommand& o, lm::Model& model, const io::Tokenizer& tokenizer,
                  DemoReport& report) {
  const auto ids = tokenizer.encode(report.prompt);
  lm::GenerateOptions options;
  options.max_tokens =
      std::max<std::int64_t>(1, std::min(o.max_tokens, model.config().max_position_embeddings -
                                                           static_cast<std::int64_t>(ids.size())));
  options.sampling = {.temperature = o.temperature, .top_p = 0.95, .seed = o.seed};
  io::StreamDecoder decoder(tokenizer, true);
  o.say("\n  {}", report.prompt);
  options.on_token = [&](std::int64_t, std::int64_t token) {
    const std::string piece = decoder.push(static_cast<std::int32_t>(token));
    report.sample += piece;
    o.say("{}", piece);
    return !io::interrupted();
  };
  const std::vector<std::vector<std::int64_t>> prompts = {{ids.begin(), ids.end()}};
  lm::generate(model, prompts, options);
  io::check_interrupt();
  const std::string rest = decoder.finish();
  report.sample += rest;
  o.say("{}\n\n", rest);
}

void summarise(const DemoCommand& o, const DemoReport& r) {
  const double neurons = static_cast<double>(r.config.intermediate_size);
  const lm::Speed& prefill = *r.speed.prefill;
  const lm::Speed& decode = *r.speed.decode;
  o.say("What happened\n");
  o.say(
      "  A language model of {:.1f} million parameters read {} tokens; its surprise at the next\n"
      "  token (cross entropy) fell from {:.2f} to {:.2f}.\n",
      static_cast<double>(r.train.parameters) / 1e6, r.train.tokens, *r.train.loss_first,
      *r.train.loss_last);
  o.say(
      "  It learnt to use {:.1f} of {} neurons per token and layer: {:.1f} % are exactly "
      "zero.\n",
      r.nnz_mean, r.config.intermediate_size, 100 - 100 * r.nnz_mean / neurons);
  o.say(
      "  twell skips those. Same weights, same threads, against PyTorch's dense layers:\n"
      "    reading a prompt   {:>9.0f} tokens/s -> {:>9.0f} tokens/s   {}\n"
      "    writing            {:>9.0f} tokens/s -> {:>9.0f} tokens/s   {}\n",
      prefill.tokens_per_s(prefill.dense()), prefill.tokens_per_s(prefill.sparse()),
      format_ratio(prefill.speedup()), decode.tokens_per_s(decode.dense()),
      decode.tokens_per_s(decode.sparse()), format_ratio(decode.speedup()));
  o.say(
      "  The outputs are the same up to {} rounding: they differ by {:.1e} of the largest;\n"
      "  {:.1e} is allowed.\n\n",
      r.dtype, r.max_rel_err, r.bound);
  o.say("Report   {}\nModel    {}   (twell generate --model {} --prompt \"...\")\n",
        (fs::path(o.out) / "report.html").string(), r.model, r.model);
}

nlohmann::json results_json(const DemoReport& r, const std::string& out) {
  return {{"train", to_json(r.train)},
          {"nnz_mean", r.nnz_mean},
          {"neurons", r.config.intermediate_size},
          {"speedup_prefill", r.speed.prefill->speedup()},
          {"speedup_decode", r.speed.decode->speedup()},
          {"prefill", r.speed.prefill->to_json()},
          {"decode", r.speed.decode->to_json()},
          {"max_rel_err", r.max_rel_err},
          {"max_rel_err_bound", r.bound},
          {"dense_max_rel_err_fp32", r.dense_error},
          {"sparse_max_rel_err_fp32", r.sparse_error},
          {"dtype", r.dtype},
          {"prompt", r.prompt},
          {"text", r.sample},
          {"model", r.model},
          {"report", (fs::path(out) / "report.html").string()}};
}

void run(DemoCommand& o) {
  const auto files = lm::find_texts(std::vector<fs::path>(o.texts.begin(), o.texts.end()));
  DemoDirectory directory(o.out);
  DemoReport report;
  report.text_name =
      files.size() == 1 ? files[0].filename().string() : fmt::format("{} files", files.size());
  lm::TrainRun training = make_run(o);
  training.out = directory.training();
  const std::string length =
      o.steps ? counted(*o.steps, "step")
              : fmt::format("at most {}", format_duration(training.recipe.time_budget_s));
  o.say("1/4  Training a small model with a ReLU gate and an L1 term on {}: {}\n", report.text_name,
        length);
  report.train = train(o, training, report.log);
  report.model = directory.keep();

  o.say("2/4  Running it: PyTorch's dense layers against twell's sparse ones: about 10 s\n");
  const c10::InferenceMode no_grad;
  ModelOptions open;
  open.model = report.model;
  open.threads = o.threads;
  const Models models = {open.open(lm::FfnPath::dense), open.open(lm::FfnPath::dense, true),
                         open.open(lm::FfnPath::sparse)};
  const io::Tokenizer tokenizer = open.tokenizer();
  lm::keep_freed_memory();
  report.config = models.sparse->config();
  report.dtype = models.sparse->dtype() == at::kFloat ? "fp32" : "bf16";
  report.tier = name_of(default_cpu_tier());
  report.processor = processor_name();
  report.threads = o.threads;
  measure(open, models, read_tokens(files.front().string(), tokenizer, 2048), report);
  o.say("  prefill {}, decode {}, outputs within {:.1e} of each other\n",
        format_ratio(report.speed.prefill->speedup()), format_ratio(report.speed.decode->speedup()),
        report.max_rel_err);

  o.say("3/4  Writing, on the sparse path: about 1 s\n");
  report.prompt = o.prompt.empty() ? opening_of(files.front().string()) : o.prompt;
  write_sample(o, *models.sparse, tokenizer, report);

  o.say("4/4  Writing the report: at once\n\n");
  io::write_file_atomically(fs::path(o.out) / "report.html", report_html(report));
  summarise(o, report);
  const nlohmann::json results = results_json(report, o.out);
  write_json((fs::path(o.out) / "results.json").string(), results);
  o.write(results);
  // A NaN is no agreement either.
  if (!(report.max_rel_err <= report.bound)) {
    io::fail_file("comparison",
                  "dense and sparse outputs differ by {:.2e}, more than the {:.2e} that "
                  "rounding explains; please report this",
                  report.max_rel_err, report.bound);
  }
}

}  // namespace

void add_demo(CLI::App& app) {
  auto [c, o] = add_command<DemoCommand>(
      app, "demo",
      "Train a small sparse model on a text, compare dense and sparse, write text and a report",
      "twell demo --text book.txt --minutes 7", run);
  add_paths_option(c, "--text", o->texts, "Text files to learn from, or directories of them");
  c.add_option("--out", o->out, "Directory to write into; an older demo there is replaced")
      ->type_name("DIR");
  c.add_option("--minutes", o->minutes, "How long it may take")->check(in_range(0.2, 1440.0));
  c.add_option("--steps", o->steps, "Train this many steps instead")->check(kPositive);
  c.add_option("--prompt", o->prompt, "Text to continue (default: the beginning of the text)")
      ->type_name("TEXT");
  c.add_option("--max-tokens", o->max_tokens, "Tokens to write")->check(kPositive);
  c.add_option("--temperature", o->temperature, "0 always takes the likeliest token")
      ->check(in_range(0.0, 100.0));
  add_seed_option(c, o->seed, "Seed of weights, order and text");
  const auto shape = [&c](const char* name, std::optional<std::int64_t>& value, const char* text) {
    c.add_option(name, value, std::string(text) + " (default: of the demo)")
        ->check(kCounts)
        ->group("Shape");
  };
  shape("--layers", o->layers, "Layers");
  shape("--width", o->width, "Width D of a token");
  shape("--neurons", o->neurons, "Neurons H of a layer");
  shape("--context", o->context, "Tokens of a training window");
  shape("--batch", o->batch, "Windows of a step");
  shape("--bpe-vocab", o->bpe_vocab, "Entries of the tokenizer");
}

}  // namespace twell::cli
