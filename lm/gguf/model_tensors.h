// What a model's tensors are called in GGUF files and in a Hugging Face directory, and how their
// rows differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/architecture.h"

namespace twell::io {

// An architecture that both know. llama.cpp's computes one activation, whatever a file says.
struct GgufArchitecture {
  const char* name;  // general.architecture
  const Architecture* architecture;
  HiddenAct hidden_act;
  bool gated;
  // Rotary embeddings turn neighbours of a head, where `transformers` turns dimensions half a head
  // apart: rows of q and k are in another order.
  bool turns_neighbours;
  bool head_norms;
  bool qkv_bias, other_biases;  // may have some
};

// Throws Error (unsupported) naming `file` where it is not known here.
const GgufArchitecture& gguf_architecture(std::string_view name, const std::string& file);
// The one that computes what the model does; `file` is that of the configuration. Throws Error
// (unsupported) where llama.cpp has none.
const GgufArchitecture& gguf_architecture(const ModelConfig& config, const std::string& file);

struct ModelTensor {
  std::string gguf;  // "blk.0.attn_q.weight"
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  bool linear = false;     // a matrix of a linear layer; not the embedding
  std::int64_t heads = 0;  // whose rows are in another order in the GGUF file; 0: none are

  bool is_matrix() const { return shape.size() == 2; }
  bool of_block_matrix() const { return linear && gguf.starts_with("blk."); }
  std::int64_t rows() const { return is_matrix() ? shape[0] : 1; }
  std::int64_t columns() const { return shape.back(); }
  std::string module() const { return name.substr(0, name.rfind('.')); }
};

// In checkpoint order.
std::vector<ModelTensor> tensors_of(const ModelConfig& config, const GgufArchitecture& as);

// Where a row of q or k is in a GGUF file, and the other way round.
std::int64_t row_in_gguf(std::int64_t row, std::int64_t rows_of_head);
std::int64_t row_from_gguf(std::int64_t row, std::int64_t rows_of_head);

// llama3's scaling of frequencies is a tensor in GGUF files.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";

}  // namespace twell::io
