// A decoder of attention and feed-forward blocks. Which norms they have and where, how positions
// enter and what the parameters are called is said by the configuration and its architecture.
#pragma once

#include <memory>
#include <vector>

#include "decoder/attention.h"
#include "decoder/experts.h"
#include "decoder/model.h"
#include "decoder/norm.h"
#include "decoder/weights.h"

namespace twell::lm {

// Around a layer f of a block: sum(x + after(f(before(x)))). Which of them there are says
// io::NormOrder.
struct ResidualNorms {
  Norm before = {}, after = {}, sum = {};
};

// What a feed-forward layer is made of, as far as it goes on using them.
struct FfnTensors {
  Linear gate, up, down;
  Norm inner_norm;  // in front of down
};

struct Block {
  ResidualNorms attention_norms;
  Attention attention;
  ResidualNorms ffn_norms;
  Linear router;                     // without experts there is none
  std::vector<FfnTensors> ffn_from;  // one, or one for each expert
  std::unique_ptr<FeedForward> ffn;  // null where there are experts
  std::unique_ptr<Experts> experts;
};

struct DecoderWeights {
  Parameter embedding;  // [V, D]
  Norm embedding_norm;
  Parameter positions;  // [positions, D]; no name unless they are learned
  std::vector<Block> blocks;
  Norm final_norm;
  Linear head;  // [V, D]; no name where tied to the embedding
};

class Decoder final : public Model {
 public:
  // Takes all parameters from `source` to `device`. The feed-forward layers are made afterwards, by
  // use_dense_ffn() or use_sparse_ffn().
  Decoder(const io::ModelConfig& config, ParameterSource& source, at::Device device);

  void use_dense_ffn(bool prepack, ParameterSource& source);
  // From now on inputs of attention's linear layers and of feed-forward layers are rounded to int8
  // (rounded_inputs()): another model than the one without. Inference only.
  void round_inputs();
  // Also packs the other linear layers of the blocks. Converts layer by layer and releases each
  // source at once, so that at most one layer is in memory twice. `findings`: what is known of the
  // feed-forward layers, in their order; empty: nothing.
  void use_sparse_ffn(FfnPath path, ParameterSource& source,
                      const std::vector<LayerFindings>& findings);

  // The layers of a model that has_ggml_weights(). All their products read inputs so.
  void use_ggml_ffn(FfnPath path, GgmlInputs inputs, ParameterSource& source);

  const io::ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  at::Device device() const override { return weights_.embedding.tensor.device(); }
  std::int64_t layers() const override { return config_.num_hidden_layers; }
  bool has_ggml_weights() const override;
  bool rounds_inputs() const override {
    return rounds_inputs_ || ggml_inputs_ == GgmlInputs::rounded;
  }
  NamedTensors parameters() const override;
  std::int64_t weight_bytes() const override;
  at::Tensor forward(const at::Tensor& tokens, FfnObserver* observer) override;
  at::Tensor embed(const at::Tensor& tokens) override;
  at::Tensor block(std::int64_t layer, const at::Tensor& x, FfnObserver* observer) override;
  at::Tensor final_norm(const at::Tensor& x) override { return norm(x, weights_.final_norm); }
  at::Tensor head(const at::Tensor& normalised) override;
  at::Tensor hidden_states(std::span<const Chunk> chunks, KvCache* cache,
                           FfnObserver* observer) override;
  KvCache make_cache(std::int64_t slots, std::int64_t capacity, bool fixed) const override;
  at::Tensor step(const at::Tensor& tokens, const at::Tensor& positions,
                  const KvCache& cache) override;
  FeedForward& feed_forward(std::int64_t layer) override;
  std::unique_ptr<FeedForward> set_feed_forward(std::int64_t layer,
                                                std::unique_ptr<FeedForward> ffn) override;
  FfnParameters ffn_parameters(std::int64_t layer) const override;
  FfnNames ffn_names(std::int64_t layer) const override;
  ActivationChoice activation() const override;
  void set_profile(Profile* profile) override { profile_ = profile; }

 private:
  std::size_t index(std::int64_t layer) const;  // throws where there is no such layer
  FfnParameters ffn_of(const FfnTensors& from) const;
  // Of a layer that has no experts, or throws.
  const FfnTensors& only_ffn(std::int64_t layer) const;
  // Makes the block's feed-forward layer, or its experts, by `make`.
  template <class Make>
  void make_ffn(Block& block, const Make& make);
  PackedRows whole(std::int64_t batch, std::int64_t length);
  PackedRows plan(std::span<const Chunk> chunks, const KvCache* cache);
  // Of floating-point weights or codes, which it gives up as far as the layer does not read them.
  std::unique_ptr<FeedForward> make_float_ffn(FfnTensors& from, FfnPath path,
                                              ParameterSource& source,
                                              const LayerFindings* findings) const;
  void pack_attention(Block& block, ParameterSource& source, GgmlPacking how = {});
  // Ids [..., N] of tokens at `positions`, int64 [N] -> [..., N, D].
  at::Tensor look_up(const at::Tensor& ids, const at::Tensor& positions);
  at::Tensor norm(const at::Tensor& x, const Norm& norm) const;
  // x + y, where a layer computed y: without gradients the sum may take its place.
  at::Tensor plus(const at::Tensor& x, at::Tensor y) const;
  // [N, D] -> [N, D]
  at::Tensor run_block(std::int64_t layer, const at::Tensor& x, const Rows& rows,
                       FfnObserver* observer);
  // All blocks and the final norm.
  at::Tensor run(at::Tensor x, const Rows& rows, FfnObserver* observer);

  io::ModelConfig config_;
  DecoderWeights weights_;
  at::ScalarType dtype_ = at::kFloat;
  RopeTable rope_;
  bool own_linears_ = false;  // twell's linear layers, with the sparse paths
  bool rounds_inputs_ = false;
  std::optional<GgmlInputs> ggml_inputs_ = {};  // of products with blocks
  Profile* profile_ = nullptr;
};

}  // namespace twell::lm
