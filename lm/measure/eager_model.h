// A decoder as transformers runs it in eager mode: one operation of PyTorch after the other, each
// writing a new tensor, on the same weights as the model beside it. It is what people replace, and
// what the paper compares with. Python's own time, which a GPU mostly hides, is not in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "decoder/decoder.h"
#include "decoder/model.h"

namespace twell::lm {

class EagerModel {
 public:
  // Whether a model is of the form that is written here: that of Llama, Mistral and Qwen2, with a
  // gate or without.
  static bool serves(const io::ModelConfig& config);
  // `tensors`: all parameters, by their names in a checkpoint. They are handles, not copies. Throws
  // Error where serves() is false or a tensor is missing.
  EagerModel(const io::ModelConfig& config, const NamedTensors& tensors);

  // Keys and values of all tokens so far, [B, kv_heads, tokens, head_dim] a layer. They grow by
  // concatenation, as transformers' DynamicCache does.
  struct Cache {
    std::vector<at::Tensor> keys, values;
    std::int64_t length() const { return keys.empty() ? 0 : keys.front().size(2); }
    void crop(std::int64_t length);
    std::int64_t bytes() const;
  };

  // Cosines and sines of positions, [count, head_dim] of `type`.
  struct Angles {
    at::Tensor cos, sin;
  };
  Angles angles(std::int64_t first, std::int64_t count, at::ScalarType type) const;

  // tokens int64 [B, S] on the model's device -> [B, S, D]; differentiable where grad mode is on.
  at::Tensor embed(const at::Tensor& tokens) const;
  at::Tensor block(std::int64_t layer, const at::Tensor& x, const Angles& angles,
                   Cache* cache = nullptr) const;
  at::Tensor final_norm(const at::Tensor& x) const { return norm(x, weights_.final_norm); }
  at::Tensor head(const at::Tensor& normalised) const;  // [..., D] -> [..., V]
  // All blocks and the final norm. Tokens follow those in the cache, which they are added to.
  at::Tensor hidden_states(const at::Tensor& tokens, Cache* cache = nullptr) const;

  std::int64_t layers() const { return config_.num_hidden_layers; }
  std::int64_t weight_bytes() const;
  at::Device device() const { return weights_.embedding.tensor.device(); }

 private:
  at::Tensor norm(const at::Tensor& x, const Norm& norm) const;
  at::Tensor attention(std::int64_t layer, const at::Tensor& x, const Angles& angles,
                       Cache* cache) const;
  at::Tensor feed_forward(std::int64_t layer, const at::Tensor& x) const;

  io::ModelConfig config_;
  DecoderWeights weights_;
  at::Tensor frequencies_;  // fp32 [head_dim / 2]
};

}  // namespace twell::lm
