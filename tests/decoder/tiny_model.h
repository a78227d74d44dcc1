// Small models for the tests of models, engine and command line: random weights in a directory of
// their own, read back through the loader.
#pragma once

#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "decoder/model.h"
#include "decoder/weights.h"

namespace twell::test {

// A directory that is removed again.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    static std::atomic<int> next = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("twell-test-" + std::to_string(getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline io::ModelConfig tiny_config() {
  io::ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 176;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 211;
  config.max_position_embeddings = 96;
  config.hidden_act = io::HiddenAct::relu;
  config.eos_token_ids = {2};
  return config;
}

// Weights ten times as large as for training: outputs of blocks then matter beside the embedding,
// and attention is not uniform, so that mistakes in either show.
inline std::unique_ptr<lm::Model> tiny_model(const io::ModelConfig& config,
                                             at::ScalarType dtype = at::kFloat) {
  auto model = lm::make_model(config, dtype, 11);
  at::manual_seed(11);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model->parameters()) {
    if (tensor.dim() == 2) tensor.mul_(10.0);
    if (tensor.dim() == 1) tensor.add_(at::randn_like(tensor).mul_(0.1));
  }
  return model;
}

inline void save_model(const std::filesystem::path& directory, const io::ModelConfig& config,
                       const lm::NamedTensors& tensors) {
  std::vector<io::TensorData> data;
  for (const auto& [name, tensor] : tensors) data.push_back(lm::tensor_data(name, tensor));
  io::save_checkpoint(directory, data);
  io::save_config(directory, config);
}

// Where two computations of the same sums in different orders may differ: (n + 2) u of the
// magnitude per sum of n terms; L blocks chain three sums over D, one over H, one over S.
inline double fp32_bound(const io::ModelConfig& c, std::int64_t length, const at::Tensor& logits) {
  const auto terms = static_cast<double>(
      c.num_hidden_layers * (3 * c.hidden_size + c.intermediate_size + length) + c.hidden_size);
  return terms * 0x1.0p-24 * logits.abs().max().item<double>();
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace twell::test
