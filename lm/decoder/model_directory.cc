#include "decoder/model_directory.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "checkpoint/architecture.h"
#include "decoder/prepared_file.h"
#include "files/file_error.h"
#include "files/note.h"

namespace twell::lm {
namespace {

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

}  // namespace

ModelDirectory::ModelDirectory(const std::filesystem::path& directory, io::ModelConfig config,
                               CheckpointSourceOptions options)
    : OpenedModel(directory.string(), std::move(config)) {
  refuse_adapter(directory);
  checkpoint_ = std::make_shared<io::Checkpoint>(
      config_.weights_file.empty() ? directory : directory / config_.weights_file);
  options.quantization = std::exchange(config_.quantization, std::nullopt);
  source_ = make_checkpoint_source(checkpoint_, options);
  config_.tie_word_embeddings = is_tied(config_, checkpoint_, options);
}

void ModelDirectory::check_all_used() const {
  for (const std::string& name : source_->unused()) {
    if (name.ends_with("rotary_emb.inv_freq")) continue;
    if (config_.tie_word_embeddings && name == head_of(config_)) continue;
    io::fail_file(checkpoint_->at(name).file->path().string(),
                  "config.json has no use for tensor {}: one of the files belongs to another "
                  "model; twell convert --allow-unused writes one without such tensors",
                  io::in_quotes(name));
  }
}

std::vector<LayerFindings> ModelDirectory::findings(const Model& model) const {
  return load_findings(name_, *checkpoint_, model);
}

}  // namespace twell::lm
