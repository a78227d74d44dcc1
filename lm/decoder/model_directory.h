// A Hugging Face directory, opened.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "decoder/opened_model.h"

namespace twell::lm {

class ModelDirectory final : public OpenedModel {
 public:
  // `config` is that of the directory. Throws twell::Error naming the file where an adapter lies
  // there, or the weights cannot be read.
  ModelDirectory(const std::filesystem::path& directory, io::ModelConfig config,
                 CheckpointSourceOptions options);

  const io::Checkpoint& checkpoint() const { return *checkpoint_; }
  // But for two that are harmless: tables that older versions of `transformers` stored, and an
  // output matrix that is tied to the embedding.
  void check_all_used() const override;
  std::vector<LayerFindings> findings(const Model& model) const override;

 private:
  std::shared_ptr<io::Checkpoint> checkpoint_;
};

}  // namespace twell::lm
