#include "train/run.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "checkpoint/side_files.h"
#include "corpus/bpe_trainer.h"
#include "corpus/corpus.h"
#include "corpus/text_files.h"
#include "decoder/model.h"
#include "files/file_error.h"
#include "files/note.h"
#include "files/run_directory.h"
#include "tokenizer/tokenizer.h"
#include "train/trainer.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Run {
 public:
  // The first process is the only one that writes: it makes what the others then find.
  explicit Run(const TrainRun& run) : run_(run), processes_(run.processes) {
    if (processes_.first()) directory_.emplace(run.out);
    processes_.wait_for_all();
  }

  TrainResult execute() {
    if (!run_.resume) recipe_.validate();
    const auto latest = io::latest_checkpoint(run_.out);
    if (run_.resume && !latest) {
      io::fail_argument("train", "resume: {} holds no checkpoint", run_.out.string());
    }
    if (!run_.resume && latest) {
      io::fail_argument("train",
                        "{} holds a checkpoint: resume the run, or choose another directory",
                        run_.out.string());
    }
    if (processes_.first()) check_log(directory_->log());
    if (latest) take_up(*latest);
    tell("reading the text", 0.0);
    const auto files = find_texts(run_.data);
    if (!tokenizer_) load_tokenizer(files);
    if (!processes_.first()) processes_.wait_for_all();
    const Corpus corpus = load_corpus(files, *tokenizer_, cache(), [this](auto done, auto total) {
      tell("tokenizing", static_cast<double>(done) / static_cast<double>(total));
    });
    if (processes_.first()) processes_.wait_for_all();
    tell("preparing the model", 0.0);
    trainer_ = std::make_unique<Trainer>(start_model(latest, corpus.tokens), recipe_,
                                         TrainingData{corpus.tokens, corpus.hash}, processes_);
    if (run_.resume) trainer_->load(*latest);
    train();
    return finish();
  }

 private:
  void tell(const std::string& what, double share) const {
    if (run_.preparing) run_.preparing(what, share);
  }
  fs::path start() const { return io::resolve_model_directory(recipe_.model); }
  fs::path cache() const { return run_.cache.empty() ? run_.out / "cache" : run_.cache; }

  void take_up(const fs::path& latest) {
    recipe_ = run_.resume(latest, saved_recipe(latest));
    recipe_.validate();
    tokenizer_ = io::Tokenizer::load(latest);
    sides_ = io::SideFiles::read(latest);
    if (run_.tokenizer && io::Tokenizer::load(*run_.tokenizer).hash() != tokenizer_->hash()) {
      io::fail_argument("tokenizer", "{} is not that of the run: a resumed run cannot change it",
                        run_.tokenizer->string());
    }
    const io::HiddenAct act = io::load_config(latest).hidden_act;
    if (run_.activation && act != *run_.activation) {
      io::fail_argument("activation",
                        "the run has {}, {} is asked for: a resumed run cannot change it",
                        io::name_of(act), io::name_of(*run_.activation));
    }
  }

  void load_tokenizer(const std::vector<fs::path>& files) {
    if (!recipe_.model.empty()) {
      sides_ = io::SideFiles::read(start());
      io::note_left_out(start(), sides_);
    }
    if (run_.tokenizer) {
      tokenizer_ = io::Tokenizer::load(*run_.tokenizer);
      sides_.replace_tokenizer(io::SideFiles::read(*run_.tokenizer));
    } else if (!recipe_.model.empty()) {
      tokenizer_ = io::Tokenizer::load(start());
    } else {
      tell("learning a tokenizer", 0.0);
      const auto texts = sample_texts(files, run_.bpe_max_bytes);
      BpeOptions options;
      options.vocab_size = recipe_.bpe_vocab;
      const std::vector<std::string_view> views(texts.begin(), texts.end());
      tokenizer_ = io::Tokenizer::from_json(train_bpe(views, options), "learnt tokenizer");
    }
  }

  std::unique_ptr<Model> start_model(const std::optional<fs::path>& latest,
                                     const TokenStream& tokens) {
    const bool fresh = !latest && recipe_.model.empty();
    io::ModelConfig config = run_.config;
    if (!fresh) config = io::load_config(latest ? *latest : start());
    config.quantization.reset();  // what is trained are floating-point numbers
    if (fresh) complete(config);
    if (run_.activation) config.hidden_act = *run_.activation;
    config.validate();
    expect_vocabulary(config.vocab_size, tokens);
    // A resumed run gets its weights from Trainer::load.
    std::unique_ptr<Model> source;
    if (!fresh && !latest) {
      source = load_weights();
      config.tie_word_embeddings = source->config().tie_word_embeddings;  // as they turned out
    }
    auto model = make_model(config, at::kFloat, recipe_.seed, run_.device);
    if (source) copy_weights(*source, *model);
    for (const auto& [name, tensor] : model->parameters()) result_.parameters += tensor.numel();
    return model;
  }

  // Tokenizers may have entries that their model has not, such as a token for padding; a text that
  // uses one cannot be trained on.
  void expect_vocabulary(std::int64_t most, const TokenStream& tokens) const {
    const std::int64_t vocab = tokenizer_->vocab_size();
    if (vocab <= most) return;
    const std::int64_t id = tokens.largest();
    if (id >= most) {
      io::fail_argument(
          "train",
          "the tokenizer has {} entries, the model only {}, and the text holds the "
          "token {} ({}): they do not belong together",
          vocab, most, id,
          io::in_quotes(tokenizer_->id_to_token(static_cast<std::int32_t>(id)).value_or("")));
    }
    if (!processes_.first()) return;
    io::note(
        fmt::format("the tokenizer has {} entries, the model only {}; the text uses none that "
                    "the model has not",
                    vocab, most));
  }

  void complete(io::ModelConfig& config) const {
    if (config.vocab_size == 0) config.vocab_size = tokenizer_->vocab_size();
    if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
    if (config.head_dim == 0 && config.num_attention_heads > 0) {
      config.head_dim = config.hidden_size / config.num_attention_heads;
    }
    config.max_position_embeddings = std::max(config.max_position_embeddings, recipe_.context);
    if (!config.eos_token_ids.empty()) return;
    if (const auto eos = tokenizer_->eos_id()) config.eos_token_ids = {*eos};
  }

  std::unique_ptr<Model> load_weights() const {
    LoadOptions options;
    options.dtype = at::kFloat;
    options.trainable = true;
    return load_model(start().string(), options);
  }

  static void copy_weights(const Model& from, Model& to) {
    const NamedTensors weights = from.parameters();
    NamedTensors targets = to.parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      targets.at(i).second.detach().copy_(weights[i].second.detach());
    }
  }

  void train() {
    const Recipe& recipe = trainer_->recipe();
    std::optional<TrainLog> log;
    if (processes_.first()) log.emplace(directory_->log(), trainer_->steps_done());
    first_step_ = trainer_->steps_done();
    bool running = trainer_->steps_done() < recipe.length();
    if (running) tell("the first steps", 0.0);
    if (running && run_.begins) run_.begins();
    while (running) {
      LogRecord record = group();
      record.steps = recipe.length();
      const bool last = record.step == recipe.length();
      if (last || due(recipe.eval_every)) record.validation_loss = trainer_->validation_loss();
      record.seconds = since(begin_);
      if (log) log->write(record);
      result_.loss_last = record.ce;
      result_.nnz_mean = record.nnz_mean;
      result_.layers = record.layers;
      result_.validation_loss = record.validation_loss;
      if (run_.progress) run_.progress(record);
      running = !last && !stopped_;
      if (!running || due(recipe.save_every)) save();
      trainer_->reset_activity();
    }
  }

  bool stopped() { return stopped_ = processes_.of_first(run_.stop && run_.stop()); }

  bool due(std::int64_t every) const { return every > 0 && trainer_->steps_done() % every == 0; }

  // Steps up to the next log line, validation or checkpoint, so that a run that was killed after a
  // checkpoint logs the same groups as one that was not. Where it is asked to stop, up to there.
  LogRecord group() {
    const Recipe& recipe = trainer_->recipe();  // its length() may change
    LogRecord record;
    std::int64_t count = 0;
    const auto begin = Clock::now();
    do {
      const StepResult step = trainer_->step();
      ++count;
      if (steps_here() == 1) result_.loss_first = step.ce;
      record.loss += step.loss;
      record.ce += step.ce;
      record.l1 += step.l1;
      record.grad_norm += step.grad_norm;
      record.revived += step.revived;
      record.lr = step.lr;
      record.l1_coefficient = step.l1_coefficient;
    } while (!stopped() && trainer_->steps_done() < recipe.length() && !due(recipe.log_every) &&
             !due(recipe.eval_every) && !due(recipe.save_every));
    const double seconds = since(begin);
    step_seconds_ += seconds;
    for (double* mean : {&record.loss, &record.ce, &record.l1, &record.grad_norm}) {
      *mean /= static_cast<double>(count);
    }
    record.step = trainer_->steps_done();
    record.tokens = trainer_->tokens_seen();
    record.tokens_per_s = static_cast<double>(count * recipe.tokens_per_step()) / seconds;
    const double per_step = seconds / static_cast<double>(count);
    seconds_per_step_ = seconds_per_step_ > 0.0 ? 0.5 * (seconds_per_step_ + per_step) : per_step;
    const auto fits = processes_.of_first(steps_within_budget());
    if (record.step < recipe.length()) trainer_->set_length(fits);
    record.sparse_layers = trainer_->sparse_layers();
    record.layers = trainer_->activity();
    for (const LayerActivity& layer : record.layers) record.nnz_mean += layer.nnz_mean;
    record.nnz_mean /= static_cast<double>(std::max<std::size_t>(1, record.layers.size()));
    return record;
  }

  std::int64_t steps_here() const { return trainer_->steps_done() - first_step_; }

  // Those that fit into the budget at the present speed: an average, whose weights halve with every
  // group, so that a passing load on the machine shortens a run for a few groups only. The plan in
  // the first fifth of the time, when many neurons are active still and steps are slower than
  // later.
  std::int64_t steps_within_budget() const {
    const Recipe& recipe = trainer_->recipe();
    const double left = recipe.time_budget_s - since(begin_);
    if (recipe.time_budget_s <= 0.0 || left > 0.8 * recipe.time_budget_s) return recipe.length();
    return trainer_->steps_done() +
           static_cast<std::int64_t>(std::max(1.0, std::floor(left / seconds_per_step_)));
  }

  void save() {
    trainer_->check_processes();
    if (!processes_.first()) return;
    result_.checkpoint = directory_->add(
        trainer_->steps_done(), trainer_->recipe().keep_checkpoints,
        [this](const fs::path& path) { trainer_->save(path, &*tokenizer_, sides_); });
  }

  TrainResult finish() {
    result_.steps = trainer_->steps_done();
    result_.neurons = trainer_->config().intermediate_size;
    result_.tokens = trainer_->tokens_seen();
    result_.seconds = since(begin_);
    const auto tokens = static_cast<double>(steps_here() * trainer_->recipe().tokens_per_step());
    if (step_seconds_ > 0.0) result_.tokens_per_s = tokens / step_seconds_;
    if (result_.checkpoint.empty())
      result_.checkpoint = io::latest_checkpoint(run_.out).value_or(run_.out);
    return result_;
  }

  const TrainRun& run_;
  Recipe recipe_ = run_.recipe;
  Processes processes_;
  std::optional<io::RunDirectory> directory_;
  std::optional<io::Tokenizer> tokenizer_;
  io::SideFiles sides_;  // of the model that is trained on
  std::unique_ptr<Trainer> trainer_;
  TrainResult result_;
  Clock::time_point begin_ = Clock::now();
  std::int64_t first_step_ = 0;
  bool stopped_ = false;
  double step_seconds_ = 0.0;      // of all steps here
  double seconds_per_step_ = 0.0;  // average of the latest groups
};

}  // namespace

TrainResult run_training(const TrainRun& run) {
  try {
    return Run(run).execute();
  } catch (...) {
    run.processes.failed();
    throw;
  }
}

}  // namespace twell::lm
