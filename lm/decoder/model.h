// A decoder-only language model: parameters under their Hugging Face names, a differentiable
// forward pass for training and scoring, and a cached one for generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "decoder/feed_forward.h"
#include "decoder/kv_cache.h"
#include "decoder/profile.h"

namespace twell::lm {

// Consecutive tokens of one sequence. With a cache they follow what `slot` holds already; without
// one they start at position 0 and `slot` is ignored.
struct Chunk {
  std::int64_t slot = 0;
  std::span<const std::int64_t> tokens;
};

// (name, tensor) in checkpoint order, for example "model.layers.0.self_attn.q_proj.weight". The
// tensors are handles: changing one in place changes the model. Tied embeddings are listed once, as
// "model.embed_tokens.weight".
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The names of the tensors of FfnParameters; empty where the model has none.
struct FfnNames : FormVectors<std::string> {
  std::string gate, up, down;
};

// One call at a time; two threads use two models.
class Model {
 public:
  virtual ~Model() = default;
  virtual const io::ModelConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual at::Device device() const = 0;  // of parameters, caches and results
  virtual std::int64_t layers() const = 0;
  virtual bool has_ggml_weights() const = 0;  // whether matrices are in ggml's blocks
  // Whether inputs of products are rounded to 8 bits.
  virtual bool rounds_inputs() const = 0;

  // What the model still holds under checkpoint names. A sparse FFN keeps converted copies in place
  // of gate and down, on a GPU also of up, which are then absent; a model loaded with trainable =
  // true or made by make_model has all.
  virtual NamedTensors parameters() const = 0;
  // Weights in memory or mapped, converted copies included.
  virtual std::int64_t weight_bytes() const = 0;

  // --- whole sequences; differentiable where grad mode is on ---
  // tokens int64 [B, S] on the CPU or device(), S <= max_position_embeddings -> logits [B, S, V] in
  // the model's dtype, or, on a CPU without gradients, f32.
  virtual at::Tensor forward(const at::Tensor& tokens, FfnObserver* observer = nullptr) = 0;
  // The same in pieces, for recomputation and for losses that never hold all logits:
  // embed -> block(0) ... block(layers()-1) -> final_norm -> head.
  virtual at::Tensor embed(const at::Tensor& tokens) = 0;  // int64 [B, S] -> [B, S, D]
  virtual at::Tensor block(std::int64_t layer, const at::Tensor& x,
                           FfnObserver* observer = nullptr) = 0;  // [B, S, D] -> [B, S, D]
  virtual at::Tensor final_norm(const at::Tensor& x) = 0;         // [..., D] -> [..., D]
  virtual at::Tensor head(const at::Tensor& normalised) = 0;      // [..., D] -> logits [..., V]

  // --- packed sequences, for inference ---
  // All tokens of all chunks as rows, one chunk after the other, without padding: a ragged batch
  // computes what its sequences would compute alone. -> normalised hidden states [N, D], ready for
  // head(). With a cache, every chunk's slot is extended. Throws twell::Error where a slot would
  // exceed its capacity, a token id is outside the vocabulary, or a chunk is empty.
  virtual at::Tensor hidden_states(std::span<const Chunk> chunks, KvCache* cache = nullptr,
                                   FfnObserver* observer = nullptr) = 0;
  // On a GPU always fixed.
  virtual KvCache make_cache(std::int64_t slots, std::int64_t capacity,
                             bool fixed = false) const = 0;
  // One token of every slot of a fixed cache: `tokens` and their `positions`, int64 [slots] on
  // device(), the positions below the cache's capacity -> normalised hidden states [slots, D].
  // Nothing is read back and no shape depends on a value, so that a StepGraph can record it. The
  // caller keeps positions; the cache's lengths stay.
  virtual at::Tensor step(const at::Tensor& tokens, const at::Tensor& positions,
                          const KvCache& cache) = 0;

  // --- the feed-forward layers ---
  virtual FeedForward& feed_forward(std::int64_t layer) = 0;
  // Replaces a layer's implementation, for example by a sparse autograd one over the same weights.
  // Returns the one that it had.
  virtual std::unique_ptr<FeedForward> set_feed_forward(std::int64_t layer,
                                                        std::unique_ptr<FeedForward> ffn) = 0;
  // Weights as in the checkpoint; throws twell::Error where a sparse layer has given them up.
  virtual FfnParameters ffn_parameters(std::int64_t layer) const = 0;
  virtual FfnNames ffn_names(std::int64_t layer) const = 0;
  virtual ActivationChoice activation() const = 0;

  // Times the pieces of inference from now on (null: no more). The profile outlives its use.
  virtual void set_profile(Profile* profile) = 0;
};

struct LoadOptions {
  FfnPath path = FfnPath::automatic;
  at::Device device = at::kCPU;  // as open_device() gave it
  // at::kBFloat16 or at::kFloat, on a GPU also at::kHalf; absent: as stored, but f64 as f32, and so
  // is f16 on the CPU
  std::optional<at::ScalarType> dtype = {};
  bool trainable = false;      // own writable copies with requires_grad, dense FFN, `path` ignored
  bool prepack_dense = false;  // dense path: oneDNN-ordered FFN weights
  bool check_finite = true;    // refuse NaN and infinite weights: reads every byte once
  bool round_scales = false;   // of int4 weights, to 5 bits, so that these stay codes
  // Inputs of attention's linear layers and of feed-forward layers in int8, on a CPU, of a model
  // with quantised weights: prompts are read faster. As twell/linear.h rounds them, or, of products
  // with ggml's blocks, as twell/ggml.h does; absent: of the latter alone, like llama.cpp.
  std::optional<bool> round_inputs = {};
  bool allow_unused = false;  // leave out tensors that config.json has no use for
  // Of the model's layers the first so many, and the rest of the file left out; 0: all. For
  // measuring a model that is larger than the memory.
  std::int64_t layers = 0;
  // Sparse layers decide by the findings beside the checkpoint (prepared_file.h), or, where there
  // are none, by seeded tokens; false: by the model's first call.
  bool prepare = true;
  std::span<const io::Architecture* const> architectures = io::architectures();  // known ones
};

// Loads a Hugging Face directory (config.json, model.safetensors or its shards): memory-mapped, FFN
// weights converted once. Or a GGUF file, whose matrices stay in their blocks, packed once, where
// the device is a CPU, libtwell multiplies them (twell/ggml.h), and `dtype` names no other
// type; what is computed between them is then f32. A head that config.json ties to the embedding,
// and whose stored numbers are others, is not tied. Throws twell::Error naming the file for missing
// tensors, tensors that the config has no use for, an adapter beside them, wrong shapes, an unknown
// architecture, NaN or infinite weights, or a sparse path or rounded inputs that cannot be.
std::unique_ptr<Model> load_model(const std::string& path, const LoadOptions& options = {});

// A model with fresh parameters of `dtype` for training: normal(0, initializer_range) matrices from
// `seed`, norms one, biases zero; the projections into the residual stream scaled by 1/√(2 layers).
std::unique_ptr<Model> make_model(const io::ModelConfig& config, at::ScalarType dtype,
                                  std::uint64_t seed, at::Device device = at::kCPU);

}  // namespace twell::lm
