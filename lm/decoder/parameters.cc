#include "decoder/parameters.h"

#include <fmt/format.h>

#include "checkpoint/architecture.h"

namespace twell::lm {
namespace {

// Of one model. A name that is empty makes a parameter that does not exist.
class Maker {
 public:
  explicit Maker(const io::ModelConfig& config) : c_(config) {}

  DecoderWeights all() const {
    const std::vector<std::int64_t> table{c_.vocab_size, c_.hidden_size};
    DecoderWeights weights;
    weights.embedding = {weight_of(names_.embedding), table, ParameterKind::embedding};
    if (c_.block.embedding_norm) weights.embedding_norm = norm(names_.embedding_norm);
    if (c_.block.positions.kind == io::PositionSpec::Kind::learned) {
      weights.positions = {weight_of(names_.positions),
                           {c_.max_position_embeddings + c_.block.positions.offset, c_.hidden_size},
                           ParameterKind::embedding};
    }
    for (std::int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      weights.blocks.push_back(block(fmt::format("{}{}.", names_.layers, layer)));
      weights.blocks.back().attention.rotated = c_.rotates(layer);
    }
    if (c_.block.order != io::NormOrder::post) weights.final_norm = norm(names_.final_norm);
    if (c_.tie_word_embeddings) {
      weights.embedding.other_names = {weight_of(names_.head)};  // where a file has the tied one so
    } else {
      weights.head.weight = {weight_of(names_.head), table, ParameterKind::matrix};
    }
    return weights;
  }

 private:
  static std::string weight_of(const std::string& name) {
    return name.empty() ? "" : name + "weight";
  }

  static Norm norm(const std::string& name, std::int64_t width, const io::NormSpec& spec) {
    Norm made{spec};
    // Fresh, the factor is 1.
    const auto kind = spec.plus_one ? ParameterKind::bias : ParameterKind::norm;
    if (spec.weight) made.weight = {name + "weight", {width}, kind};
    if (spec.bias) made.bias = {name + "bias", {width}, ParameterKind::bias};
    return made;
  }
  Norm norm(const std::string& name) const { return norm(name, c_.hidden_size, c_.block.norm); }
  Norm inner_norm(const std::string& name, std::int64_t width) const {
    return norm(name, width, {.kind = io::NormSpec::Kind::rms, .eps = c_.block.norm.eps});
  }

  // `second`: of the norm behind the layer, where there is one on either side.
  ResidualNorms norms(const std::string& name, const std::string& second) const {
    switch (c_.block.order) {
      case io::NormOrder::pre:
        return {.before = norm(name)};
      case io::NormOrder::post:
        return {.sum = norm(name)};
      case io::NormOrder::output:
        return {.after = norm(name)};
      case io::NormOrder::both:
        return {.before = norm(name), .after = norm(second)};
    }
    return {};
  }

  static Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias,
                       ParameterKind kind = ParameterKind::matrix) {
    Linear made;
    made.weight = {name + "weight", {out, in}, kind};
    if (bias) made.bias = {name + "bias", {out}, ParameterKind::bias};
    return made;
  }

  // Of the feed-forward layer, also under the names and in the orientations of the released
  // SparseLM models.
  Linear ffn_linear(const std::string& layer, const char* name, const char* sparse_lm_name,
                    std::int64_t out, std::int64_t in,
                    ParameterKind kind = ParameterKind::matrix) const {
    Linear made = linear(layer + name, out, in, c_.mlp_bias, kind);
    if (c_.sparse_lm) {
      const std::string other = layer + "mlp." + sparse_lm_name;
      made.weight.other_names = {other, other + ".weight"};
      made.weight.maybe_transposed = true;
    }
    return made;
  }

  // `in`: the names' beginning, of a layer or of an expert in it.
  FfnTensors ffn(const std::string& in) const {
    const std::int64_t width = c_.hidden_size;
    const std::int64_t neurons = c_.intermediate_size;
    FfnTensors made;
    if (c_.gated) made.gate = ffn_linear(in, names_.gate, "GATE", neurons, width);
    made.up = ffn_linear(in, names_.up, "UP", neurons, width);
    made.down = ffn_linear(in, names_.down, "DOWN", width, neurons, ParameterKind::residual_matrix);
    made.down.weight.is_down = true;
    if (c_.block.inner_norms) made.inner_norm = inner_norm(in + names_.ffn_inner_norm, neurons);
    return made;
  }

  Block block(const std::string& layer) const {
    const std::int64_t width = c_.hidden_size;
    const std::int64_t q = c_.num_attention_heads * c_.head_dim;
    const std::int64_t kv = c_.num_key_value_heads * c_.head_dim;
    const bool qkv_bias = c_.block.qkv_bias;
    Block made;
    made.attention_norms =
        norms(layer + names_.attention_norm, layer + names_.attention_output_norm);
    made.attention = {
        linear(layer + names_.q, q, width, qkv_bias), linear(layer + names_.k, kv, width, qkv_bias),
        linear(layer + names_.v, kv, width, qkv_bias),
        linear(layer + names_.o, width, q, c_.block.o_bias, ParameterKind::residual_matrix)};
    if (c_.block.head_norms) {
      made.attention.q_norm = norm(layer + names_.q_norm, c_.head_dim, c_.block.norm);
      made.attention.k_norm = norm(layer + names_.k_norm, c_.head_dim, c_.block.norm);
    }
    if (c_.block.inner_norms) {
      made.attention.inner_norm = inner_norm(layer + names_.attention_inner_norm, q);
    }
    if (c_.block.arrangement != io::Arrangement::parallel_one_norm) {
      made.ffn_norms = norms(layer + names_.ffn_norm, layer + names_.ffn_output_norm);
    }
    const std::int64_t experts = c_.block.experts.count;
    if (experts == 0) {
      made.ffn_from.push_back(ffn(layer));
    } else {
      made.router = linear(layer + names_.router, experts, width, false, ParameterKind::router);
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      made.ffn_from.push_back(ffn(fmt::format("{}{}{}.", layer, names_.experts, e)));
    }
    return made;
  }

  const io::ModelConfig& c_;
  const io::TensorNames& names_ = c_.architecture->tensors;
};

}  // namespace

DecoderWeights weights_of(const io::ModelConfig& config) { return Maker(config).all(); }

}  // namespace twell::lm
