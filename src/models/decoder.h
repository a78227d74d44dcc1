// What the architectures of this folder share: a pre-norm decoder of attention and feed-forward
// blocks. An architecture says which parameters it has and under which names, see registry.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/attention.h"
#include "models/model.h"
#include "models/weights.h"

namespace twell::lm {

struct Block {
  at::Tensor attention_norm;  // [D]
  Attention attention;
  at::Tensor ffn_norm;  // [D]
  FfnParameters ffn_parameters;
  std::unique_ptr<FeedForward> ffn;
};

struct DecoderWeights {
  at::Tensor embedding;  // [V, D]
  std::vector<Block> blocks;
  at::Tensor final_norm;  // [D]
  at::Tensor head;        // [V, D]; undefined where tied to the embedding
};

// Called for every parameter of a model: to fill it, list it, or convert it.
using ParameterVisitor = std::function<void(const ParameterSpec&, at::Tensor&)>;

// Pieces of an architecture's list of parameters; in parameters.cc. `prefix` ends in a dot.
void visit_linear(const std::string& prefix, std::int64_t out, std::int64_t in, bool bias,
                  ParameterKind kind, Linear& linear, const ParameterVisitor& visit);
// Queries, keys, values and output, with the biases that the configuration says.
void visit_attention(const std::string& prefix, const io::ModelConfig& config, Attention& attention,
                     const ParameterVisitor& visit);
// Gate, up and down, also under the names and in the orientations of the released SparseLM models.
void visit_ffn(const std::string& prefix, const io::ModelConfig& config, FfnParameters& ffn,
               const ParameterVisitor& visit);
// The embedding, `visit_block` for every block, the final norm, and the head where it is not tied.
// Makes the blocks where there are none yet.
void visit_decoder(const io::ModelConfig& config, DecoderWeights& weights,
                   const ParameterVisitor& visit,
                   const std::function<void(const std::string& prefix, Block&)>& visit_block);

struct Architecture;

class Decoder final : public Model {
 public:
  // Takes all parameters from `source`, and is where they are. The feed-forward layers are made
  // afterwards, by use_dense_ffn() or use_sparse_ffn().
  Decoder(const Architecture& architecture, const io::ModelConfig& config, ParameterSource& source);

  void use_dense_ffn(bool prepack, ParameterSource& source);
  // Also packs the other linear layers of the blocks. Converts layer by layer and releases each
  // source at once, so that at most one layer is in memory twice.
  void use_sparse_ffn(FfnPath path, ParameterSource& source);

  const io::ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return weights_.embedding.scalar_type(); }
  at::Device device() const override { return weights_.embedding.device(); }
  std::int64_t layers() const override { return config_.num_hidden_layers; }
  NamedTensors parameters() const override;
  std::int64_t weight_bytes() const override;
  at::Tensor forward(const at::Tensor& tokens, FfnObserver* observer) override;
  at::Tensor embed(const at::Tensor& tokens) override;
  at::Tensor block(std::int64_t layer, const at::Tensor& x, FfnObserver* observer) override;
  at::Tensor final_norm(const at::Tensor& x) override;
  at::Tensor head(const at::Tensor& normalised) override;
  at::Tensor hidden_states(std::span<const Chunk> chunks, KvCache* cache,
                           FfnObserver* observer) override;
  KvCache make_cache(std::int64_t slots, std::int64_t capacity, bool fixed) const override;
  at::Tensor step(const at::Tensor& tokens, const at::Tensor& positions,
                  const KvCache& cache) override;
  FeedForward& feed_forward(std::int64_t layer) override;
  void set_feed_forward(std::int64_t layer, std::unique_ptr<FeedForward> ffn) override;
  FfnParameters ffn_parameters(std::int64_t layer) const override;
  ActivationChoice activation() const override;
  void set_profile(Profile* profile) override { profile_ = profile; }

 private:
  Block& at(std::int64_t layer);
  const Block& at(std::int64_t layer) const;
  at::Tensor run_packed(Block& block, std::int64_t layer, at::Tensor x, const PackedRows& rows,
                        const KvCache* cache, FfnObserver* observer);
  PackedRows plan(std::span<const Chunk> chunks, const KvCache* cache) const;
  void pack(Linear& linear, ParameterSource& source);
  // Every parameter under its name, in checkpoint order.
  void visit(const ParameterVisitor& visitor) const;

  const Architecture& architecture_;
  io::ModelConfig config_;
  mutable DecoderWeights weights_;  // a visitor may fill it or only look
  RopeTable rope_;
  bool own_linears_ = false;  // twell's linear layers, with the sparse paths
  Profile* profile_ = nullptr;
};

}  // namespace twell::lm
