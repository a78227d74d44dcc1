#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "checkpoint/architecture.h"
#include "choice/device.h"
#include "choice/neuron_popularity.h"
#include "decoder/decoder.h"
#include "decoder/prepared_file.h"
#include "decoder/random.h"
#include "files/file_error.h"
#include "files/note.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

bool sparse_possible(const Decoder& model) {
  const at::ScalarType other = model.device().is_cpu() ? at::kFloat : at::kHalf;
  const bool biases_taken = model.device().is_cpu() || !model.config().mlp_bias;
  return io::yields_zeros(model.config().hidden_act) && biases_taken &&
         (model.dtype() == other || model.dtype() == at::kBFloat16);
}

void require_grad(const Model& model) {
  for (const auto& [name, tensor] : model.parameters()) tensor.requires_grad_(true);
}

// Runs seeded tokens, so that each sparse layer chooses the form of its gate, knows a density, and,
// on a GPU, has its neurons ordered and its screen made, before its first call: what a model
// computes on a fixed path does not depend on what it was asked first. Ids are drawn by Zipf's law,
// by which vocabularies are ordered. A CPU's layers need 64 tokens; a GPU's want to tell neurons
// that 1 % of the tokens fire from others, and look at counts in the call after the one that was
// counted: those of neurons, and then those of a screen's candidates.
void settle(Decoder& model) {
  const c10::InferenceMode inference;
  Random random(64);
  const auto vocabulary = static_cast<double>(model.config().vocab_size);
  const std::int64_t length = std::min<std::int64_t>(64, model.config().max_position_embeddings);
  const auto run = [&](std::int64_t wanted) {
    std::vector<std::vector<std::int64_t>> sequences;
    std::vector<Chunk> chunks;
    for (std::int64_t begin = 0; begin < wanted; begin += length) {
      auto& tokens = sequences.emplace_back();
      for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<std::int64_t>(std::pow(vocabulary, random.uniform())) - 1);
      }
    }
    for (const auto& tokens : sequences) chunks.push_back({0, tokens});
    model.hidden_states(chunks, nullptr, nullptr);
    runtime_of(model.device()).synchronize();
  };
  if (!model.device().is_cpu()) {
    run(NeuronPopularity::kTokens);
    run(length);
  }
  run(length);
}

std::string embedding_of(const io::ModelConfig& config) {
  return std::string(config.architecture->tensors.embedding) + "weight";
}
std::string head_of(const io::ModelConfig& config) {
  return std::string(config.architecture->tensors.head) + "weight";
}

// `transformers` adds one that lies beside the weights to them.
void refuse_adapter(const std::filesystem::path& directory) {
  const auto file = directory / "adapter_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  io::fail_unsupported(file.string(),
                       "adapters are not supported: merge it into the weights "
                       "(merge_and_unload() of the package peft)");
}

// Files that tie the output matrix to the embedding may hold it all the same, in other numbers.
// Then it is not tied: `transformers` compares the two as they are loaded.
bool is_tied(const io::ModelConfig& config, const std::shared_ptr<io::Checkpoint>& checkpoint,
             const CheckpointSourceOptions& options) {
  if (!config.tie_word_embeddings) return false;
  const std::string embedding_name = embedding_of(config), head_name = head_of(config);
  if (!checkpoint->contains(embedding_name) || !checkpoint->contains(head_name)) return true;
  const io::CheckpointTensor embedding = checkpoint->at(embedding_name);
  const io::CheckpointTensor head = checkpoint->at(head_name);
  if (io::same_bytes(embedding, head)) return true;
  const std::vector<std::int64_t> table{config.vocab_size, config.hidden_size};
  const auto source = make_checkpoint_source(checkpoint, options);
  const at::Tensor first = source->take({embedding_name, table, ParameterKind::embedding});
  if (at::equal(first, source->take({head_name, table, ParameterKind::matrix}))) return true;
  io::note(
      fmt::format("{}: {} is not the embedding, though config.json ties them "
                  "(tie_word_embeddings): it is used as it is",
                  head.file->path().string(), head_name));
  return false;
}

// A tensor that nothing took means that config.json describes another model than the weights. Two
// are harmless: tables that older versions of `transformers` stored, and an output matrix that is
// tied to the embedding.
void check_all_used(const ParameterSource& source, const io::Checkpoint& checkpoint,
                    const io::ModelConfig& config) {
  for (const std::string& name : source.unused()) {
    if (name.ends_with("rotary_emb.inv_freq")) continue;
    if (config.tie_word_embeddings && name == head_of(config)) continue;
    io::fail_file(checkpoint.at(name).file->path().string(),
                  "config.json has no use for tensor {}: one of the files belongs to another "
                  "model; twell convert --allow-unused writes one without such tensors",
                  io::in_quotes(name));
  }
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& directory, const LoadOptions& options) {
  const std::filesystem::path path(directory);
  io::ModelConfig config = io::load_config(path, options.architectures);
  if (options.path == FfnPath::sparse && !options.trainable &&
      !io::yields_zeros(config.hidden_act)) {
    // Before gigabytes are mapped and converted.
    throw Error(ErrorKind::unsupported, (path / "config.json").string(),
                fmt::format("activation '{}' yields no zeros, so there is no sparse path; use "
                            "--path dense, or a model trained with relu, relu2 or fat_relu",
                            io::name_of(config.hidden_act)));
  }
  const bool on_cpu = options.device.is_cpu();
  refuse_adapter(path);
  const auto checkpoint = std::make_shared<io::Checkpoint>(
      config.weights_file.empty() ? path : path / config.weights_file);
  const CheckpointSourceOptions from{.dtype = options.dtype,
                                     .own_copies = options.trainable && on_cpu,
                                     .check_finite = options.check_finite,
                                     .keep_f16 = !on_cpu};
  const auto source = make_checkpoint_source(checkpoint, from);
  config.tie_word_embeddings = is_tied(config, checkpoint, from);
  auto model = std::make_unique<Decoder>(config, *source, options.device);
  const auto check_used = [&] {
    if (!options.allow_unused) check_all_used(*source, *checkpoint, config);
  };
  if (options.trainable) {
    model->use_dense_ffn(false, *source);
    check_used();
    require_grad(*model);
  } else if (options.path == FfnPath::sparse ||
             (options.path == FfnPath::automatic && sparse_possible(*model))) {
    std::vector<LayerFindings> findings;
    if (options.prepare) findings = load_findings(path, *checkpoint, *model);
    model->use_sparse_ffn(options.path, *source, findings);
    check_used();
    if (options.prepare) settle(*model);
  } else {
    model->use_dense_ffn(options.prepack_dense && on_cpu, *source);
    check_used();
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
