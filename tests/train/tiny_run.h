// A model and a text that train in milliseconds.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "decoder/model.h"
#include "decoder/random.h"
#include "train/run.h"
#include "train/trainer.h"

namespace twell::test {

inline io::ModelConfig tiny_config() {
  io::ModelConfig c;
  c.hidden_size = 32;
  c.intermediate_size = 96;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.vocab_size = 64;
  c.max_position_embeddings = 16;
  c.tie_word_embeddings = true;
  c.hidden_act = io::HiddenAct::relu;
  return c;
}
inline io::ModelConfig with_biases(io::ModelConfig config) {
  config.mlp_bias = true;
  return config;
}

inline lm::Recipe tiny_recipe() {
  lm::Recipe r;
  r.validation_fraction = 0.1;
  r.steps = 20;
  r.context = 16;
  r.micro_batch = 4;
  r.peak_lr = 3e-3;
  r.warmup_steps = 2;
  r.l1 = 1e-3;
  r.l1_warmup = 10;
  r.dead_window = 4;
  r.log_every = 5;
  r.eval_windows = 4;
  r.compute = lm::ComputeType::fp32;
  return r;
}

inline io::ModelConfig with_threshold(io::ModelConfig config, double threshold) {
  config.hidden_act = io::HiddenAct::fat_relu;
  config.fat_relu_threshold = threshold;
  return config;
}

// Every id follows from the one before, four times out of five.
inline lm::TrainingData tiny_data(std::uint64_t seed = 5) {
  lm::Random random(seed);
  std::vector<std::int32_t> ids = {1};
  while (ids.size() < 2000) {
    const bool chance = random.uniform() < 0.2;
    ids.push_back(static_cast<std::int32_t>(
        chance ? random.next() % 64 : (static_cast<std::uint64_t>(ids.back()) * 5 + 3) % 64));
  }
  return {lm::TokenStream(std::move(ids)), seed};
}

// The same with a penalty that kills neurons, which are then revived.
inline lm::Recipe with_revivals(lm::Recipe recipe) {
  recipe.peak_lr = 2e-2;
  recipe.l1 = 10.0;
  recipe.l1_warmup = 2;
  recipe.dead_window = 2;
  recipe.reinit_every = 3;
  return recipe;
}

inline std::unique_ptr<lm::Trainer> tiny_trainer(const lm::Recipe& recipe = tiny_recipe(),
                                                 const lm::Processes& processes = {},
                                                 lm::DeviceRuntime* runtime = nullptr,
                                                 const io::ModelConfig& config = tiny_config()) {
  return std::make_unique<lm::Trainer>(lm::make_model(config, at::kFloat, recipe.seed), recipe,
                                       tiny_data(), processes, runtime);
}

// A run in `directory` on a small text of its own, saving after every step.
inline lm::TrainRun tiny_run(const std::filesystem::path& directory) {
  lm::TrainRun run;
  run.out = directory / "run";
  run.data = {directory / "text.txt"};
  run.config = tiny_config();
  run.config.vocab_size = 0;
  run.recipe = tiny_recipe();
  run.recipe.bpe_vocab = 280;
  run.recipe.save_every = 1;
  run.recipe.log_every = 1;
  std::string text;
  lm::Random random(1);
  for (int i = 0; i < 800; ++i) {
    text += std::string(1, static_cast<char>('a' + random.next() % 7)) + "b the cat\n";
  }
  std::ofstream(directory / "text.txt") << text;
  return run;
}

}  // namespace twell::test
