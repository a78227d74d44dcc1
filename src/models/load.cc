#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "models/decoder.h"
#include "models/device.h"
#include "models/random.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

bool sparse_possible(const Decoder& model) {
  const at::ScalarType other = model.device().is_cpu() ? at::kFloat : at::kHalf;
  return io::yields_zeros(model.config().hidden_act) && !model.config().mlp_bias &&
         (model.dtype() == other || model.dtype() == at::kBFloat16);
}

void require_grad(const Model& model) {
  for (const auto& [name, tensor] : model.parameters()) tensor.requires_grad_(true);
}

// Runs 64 tokens, so that each sparse layer chooses the form of its gate, and knows a density,
// before its first call: what a model computes on a fixed path does not depend on what it was asked
// first. Ids are drawn by Zipf's law, by which vocabularies are ordered.
void settle(Decoder& model) {
  const c10::InferenceMode inference;
  Random random(64);
  const auto vocabulary = static_cast<double>(model.config().vocab_size);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(64, model.config().max_position_embeddings);
       ++i) {
    tokens.push_back(static_cast<std::int64_t>(std::pow(vocabulary, random.uniform())) - 1);
  }
  const Chunk chunk{0, tokens};
  model.hidden_states(std::span(&chunk, 1), nullptr, nullptr);
  runtime_of(model.device()).synchronize();
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& directory, const LoadOptions& options) {
  const std::filesystem::path path(directory);
  const io::ModelConfig config = io::load_config(path);
  if (options.ffn == FfnPath::sparse && !options.trainable &&
      !io::yields_zeros(config.hidden_act)) {
    // Before gigabytes are mapped and converted.
    throw Error(ErrorKind::unsupported, (path / "config.json").string(),
                fmt::format("activation '{}' yields no zeros, so there is no sparse path; use "
                            "--ffn dense, or a model trained with relu, relu2 or fat_relu",
                            io::name_of(config.hidden_act)));
  }
  const bool on_cpu = options.device.is_cpu();
  const auto source = make_checkpoint_source(std::make_shared<io::Checkpoint>(path),
                                             {.dtype = options.dtype,
                                              .own_copies = options.trainable && on_cpu,
                                              .check_finite = options.check_finite,
                                              .keep_f16 = !on_cpu});
  auto model = std::make_unique<Decoder>(config, *source, options.device);
  if (options.trainable) {
    model->use_dense_ffn(false, *source);
    require_grad(*model);
  } else if (options.ffn == FfnPath::sparse ||
             (options.ffn == FfnPath::automatic && sparse_possible(*model))) {
    model->use_sparse_ffn(options.ffn, *source);
    settle(*model);
  } else {
    model->use_dense_ffn(options.prepack_dense && on_cpu, *source);
  }
  return model;
}

std::unique_ptr<Model> make_model(const io::ModelConfig& config, at::ScalarType dtype,
                                  std::uint64_t seed, at::Device device) {
  config.validate();
  // 0.02: the initializer_range of Llama and Qwen2.
  const auto source = make_random_source(dtype, seed, config.num_hidden_layers, 0.02);
  auto model = std::make_unique<Decoder>(config, *source, device);
  model->use_dense_ffn(false, *source);
  require_grad(*model);
  return model;
}

}  // namespace twell::lm
