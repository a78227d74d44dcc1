// Checkpoints of llama2.c, in its first ("legacy") layout: seven i32 (dim, hidden_dim, layers,
// heads, kv_heads, vocabulary, sequence length; a negative vocabulary means an own output matrix),
// then fp32 weights. Source: https://github.com/karpathy/llama2.c (run.c, export.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/mapped_file.h"

namespace twell::io {

// A weight under its Hugging Face name.
struct Llama2cTensor {
  std::string name;                 // "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // [out, in] as in checkpoints
  std::size_t offset = 0;           // bytes from the begin of the file
  std::int64_t rope_heads = 0;      // > 0 for q and k: rows need interleaved_to_half_split()
};

struct Llama2cHeader {
  ModelConfig config;
  std::vector<Llama2cTensor> tensors;
};

// All checked against the file's length. Throws Error (environment).
Llama2cHeader parse_llama2c(std::span<const std::byte> file, const std::string& name);

// llama2.c rotates the pairs (2i, 2i+1) of a head, Hugging Face models (i, i + head_dim/2). Moves
// the rows of `in` [heads * head_dim, cols] accordingly; `out` has the same size and is not `in`.
void interleaved_to_half_split(std::span<const float> in, std::int64_t heads, std::int64_t cols,
                               std::span<float> out);

class Llama2cFile {
 public:
  explicit Llama2cFile(const std::filesystem::path& path);

  // Llama, tied unless the vocabulary is negative, RMSNorm eps 1e-5, RoPE theta 10,000, bos 1,
  // eos 2 (constants of llama2.c's run.c).
  const ModelConfig& config() const { return header_.config; }
  const std::vector<Llama2cTensor>& tensors() const { return header_.tensors; }
  // The values in Hugging Face's layout (q and k permuted).
  std::vector<float> values(const Llama2cTensor& tensor) const;

 private:
  MappedFile file_;
  Llama2cHeader header_;
};

}  // namespace twell::io
