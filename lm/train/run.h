// A whole training run in a directory: data, tokenizer, model, log, checkpoints. What `twell train`
// and `twell demo` call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "train/processes.h"
#include "train/recipe.h"
#include "train/train_log.h"

namespace twell::lm {

struct TrainRun {
  std::filesystem::path out;                // see run_directory.h
  std::vector<std::filesystem::path> data;  // text files, token shards, directories of them
  std::filesystem::path cache;              // of token ids; empty: `out`/cache

  // Shape, where recipe.model gives no weights to start from. vocab_size 0: of the tokenizer;
  // head_dim and the number of key-value heads 0: derived as from a config.json without them.
  io::ModelConfig config;
  // Replaces the activation of recipe.model or `config`; the paper's way to sparsify a SiLU model.
  std::optional<io::HiddenAct> activation;

  // Directory or file; absent: of recipe.model, or else a byte-level BPE is learnt from the data.
  std::optional<std::filesystem::path> tokenizer;
  std::uint64_t bpe_max_bytes = 32 << 20;  // of text it is learnt from

  at::Device device = at::kCPU;  // as open_device() gave it
  // That train together; each calls run_training() with the same. They share all directories.
  Processes processes;

  Recipe recipe;  // recipe.model: a Hugging Face directory, or that of a run
  // Null: a new run; `out` must hold no checkpoint. Else: continue from the latest one in `out`,
  // with the recipe that this makes of the saved one; it may change what Recipe::may_change()
  // names. `config` and `recipe` are not looked at then; tokenizer and activation must be the
  // checkpoint's where they are given.
  std::function<Recipe(const std::filesystem::path& checkpoint, const Recipe& saved)> resume;

  // Before the first step of this process.
  std::function<void()> begins;
  // After every step: whether to stop here, with a checkpoint. The first process decides.
  std::function<bool()> stop;
  // After every group of steps.
  std::function<void(const LogRecord&)> progress;
  // Before the first step and where something takes long: "tokenizing", share done 0..1.
  std::function<void(const std::string&, double)> preparing;
};

struct TrainResult {
  std::int64_t steps = 0;  // done, those before a resumption included
  // None of these where nothing was left to do.
  std::optional<double> loss_first;       // cross entropy of this process' first step, nats a token
  std::optional<double> loss_last;        // mean cross entropy of the last group of steps
  std::optional<double> validation_loss;  // after the last step
  double nnz_mean = 0.0;                  // of the last group: per token, mean over layers
  std::vector<LayerActivity> layers;      // of the last group
  std::int64_t neurons = 0;               // H
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;
  double tokens_per_s = 0.0;  // of the steps alone
  double seconds = 0.0;       // preparation, validation and saving included
  std::filesystem::path checkpoint;
};

// Throws twell::Error; the last checkpoint and the log up to there remain.
TrainResult run_training(const TrainRun& run);

}  // namespace twell::lm
