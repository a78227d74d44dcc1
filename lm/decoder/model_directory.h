// A model's directory, opened: its configuration, and where its parameters come from.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/config.h"
#include "decoder/weights.h"

namespace twell::lm {

class ModelDirectory {
 public:
  // `config` is that of the directory. Throws twell::Error naming the file where an adapter lies
  // there, or the weights cannot be read.
  ModelDirectory(const std::filesystem::path& directory, io::ModelConfig config,
                 CheckpointSourceOptions options);

  // As the parameters are taken: not tied where the file holds a head that is not the embedding,
  // and without `quantization`.
  const io::ModelConfig& config() const { return config_; }
  const io::Checkpoint& checkpoint() const { return *checkpoint_; }
  ParameterSource& source() const { return *source_; }

  // Throws twell::Error naming a tensor that nothing took: config.json describes another model than
  // the weights. Two are harmless: tables that older versions of `transformers` stored, and an
  // output matrix that is tied to the embedding.
  void check_all_used() const;
  // Tells what quantised weights cost that were taken as floating-point numbers, if there are any.
  void note_dequantized() const;

 private:
  std::filesystem::path directory_;
  io::ModelConfig config_;
  std::shared_ptr<io::Checkpoint> checkpoint_;
  std::unique_ptr<ParameterSource> source_;
};

}  // namespace twell::lm
