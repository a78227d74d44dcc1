#include "gguf/model_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "files/file_error.h"

namespace twell::io {
namespace {

const Architecture* named(std::string_view name) {
  return *std::ranges::find(architectures(), name, &Architecture::name);
}

std::span<const GgufArchitecture> gguf_architectures() {
  static const GgufArchitecture kAll[] = {
      {.name = "llama",
       .architecture = &kLlama,
       .hidden_act = HiddenAct::silu,
       .gated = true,
       .turns_neighbours = true,
       .head_norms = false,
       .qkv_bias = true,
       .other_biases = true},
      {.name = "qwen2",
       .architecture = &kQwen2,
       .hidden_act = HiddenAct::silu,
       .gated = true,
       .turns_neighbours = false,
       .head_norms = false,
       .qkv_bias = true,
       .other_biases = false},
      {.name = "qwen3",
       .architecture = named("qwen3"),
       .hidden_act = HiddenAct::silu,
       .gated = true,
       .turns_neighbours = false,
       .head_norms = true,
       .qkv_bias = false,
       .other_biases = false},
      {.name = "arcee",
       .architecture = named("arcee"),
       .hidden_act = HiddenAct::relu_squared,
       .gated = false,
       .turns_neighbours = true,
       .head_norms = false,
       .qkv_bias = false,
       .other_biases = false},
  };
  return kAll;
}

bool computes(const GgufArchitecture& as, const ModelConfig& c) {
  return as.hidden_act == c.hidden_act && as.gated == c.gated &&
         as.head_norms == c.block.head_norms && (as.qkv_bias || !c.block.qkv_bias) &&
         (as.other_biases || (!c.block.o_bias && !c.mlp_bias));
}

// What sets these blocks apart from Llama's, but for what the table above tells of.
bool is_plain(const ModelConfig& c) {
  const BlockSpec& block = c.block;
  BlockSpec plain;
  plain.norm.eps = block.norm.eps;
  plain.positions.theta = block.positions.theta;
  plain.positions.scaling = block.positions.scaling;
  plain.qkv_bias = block.qkv_bias;
  plain.o_bias = block.o_bias;
  plain.head_norms = block.head_norms;
  return block == plain && !c.sparse_lm;
}

class Lister {
 public:
  Lister(const ModelConfig& config, const GgufArchitecture& as) : c_(config), as_(as) {}

  std::vector<ModelTensor> all() && {
    const std::int64_t width = c_.hidden_size;
    matrix("token_embd.", names_.embedding, c_.vocab_size, width);
    out_.back().linear = false;
    for (std::int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) block(layer);
    vector("output_norm.", names_.final_norm, width);
    if (!c_.tie_word_embeddings) matrix("output.", names_.head, c_.vocab_size, width);
    return std::move(out_);
  }

 private:
  void matrix(const std::string& gguf, const std::string& name, std::int64_t rows,
              std::int64_t columns, bool bias = false, std::int64_t heads = 0) {
    if (!as_.turns_neighbours) heads = 0;
    out_.push_back({gguf + "weight", name + "weight", {rows, columns}, true, heads});
    if (bias) out_.push_back({gguf + "bias", name + "bias", {rows}, false, heads});
  }
  void vector(const std::string& gguf, const std::string& name, std::int64_t size) {
    out_.push_back({gguf + "weight", name + "weight", {size}});
  }

  void block(std::int64_t layer) {
    const std::string gguf = fmt::format("blk.{}.", layer);
    const std::string name = fmt::format("{}{}.", names_.layers, layer);
    const std::int64_t width = c_.hidden_size, neurons = c_.intermediate_size;
    const std::int64_t q = c_.num_attention_heads * c_.head_dim;
    const std::int64_t kv = c_.num_key_value_heads * c_.head_dim;
    const bool biases = c_.block.qkv_bias;
    vector(gguf + "attn_norm.", name + names_.attention_norm, width);
    matrix(gguf + "attn_q.", name + names_.q, q, width, biases, c_.num_attention_heads);
    matrix(gguf + "attn_k.", name + names_.k, kv, width, biases, c_.num_key_value_heads);
    matrix(gguf + "attn_v.", name + names_.v, kv, width, biases);
    if (c_.block.head_norms) {
      vector(gguf + "attn_q_norm.", name + names_.q_norm, c_.head_dim);
      vector(gguf + "attn_k_norm.", name + names_.k_norm, c_.head_dim);
    }
    matrix(gguf + "attn_output.", name + names_.o, width, q, c_.block.o_bias);
    vector(gguf + "ffn_norm.", name + names_.ffn_norm, width);
    if (c_.gated) matrix(gguf + "ffn_gate.", name + names_.gate, neurons, width, c_.mlp_bias);
    matrix(gguf + "ffn_up.", name + names_.up, neurons, width, c_.mlp_bias);
    matrix(gguf + "ffn_down.", name + names_.down, width, neurons, c_.mlp_bias);
  }

  const ModelConfig& c_;
  const GgufArchitecture& as_;
  const TensorNames& names_ = c_.architecture->tensors;
  std::vector<ModelTensor> out_;
};

}  // namespace

const GgufArchitecture& gguf_architecture(std::string_view name, const std::string& file) {
  const auto all = gguf_architectures();
  const auto found = std::ranges::find(all, name, &GgufArchitecture::name);
  if (found != all.end()) return *found;
  std::vector<std::string_view> names;
  for (const GgufArchitecture& one : all) names.emplace_back(one.name);
  fail_unsupported(file, "general.architecture {} is not supported (supported: {})",
                   in_quotes(name), fmt::join(names, ", "));
}

const GgufArchitecture& gguf_architecture(const ModelConfig& config, const std::string& file) {
  const GgufArchitecture* found = nullptr;
  for (const GgufArchitecture& one : gguf_architectures()) {
    const bool its_own = one.architecture == config.architecture;
    if (is_plain(config) && computes(one, config) && (found == nullptr || its_own)) found = &one;
  }
  if (found != nullptr) return *found;
  fail_unsupported(file,
                   "is a {} with {}{}{}, which llama.cpp does not compute, so it cannot be written "
                   "to a GGUF file (it has silu with a gate, and relu2 without one)",
                   config.architecture->name, name_of(config.hidden_act),
                   config.gated ? "" : ", without a gate",
                   is_plain(config) ? "" : " and blocks of its own");
}

std::vector<ModelTensor> tensors_of(const ModelConfig& config, const GgufArchitecture& as) {
  return Lister(config, as).all();
}

std::int64_t row_in_gguf(std::int64_t row, std::int64_t rows_of_head) {
  const std::int64_t half = rows_of_head / 2, within = row % rows_of_head;
  return row - within + within % half * 2 + within / half;
}

std::int64_t row_from_gguf(std::int64_t row, std::int64_t rows_of_head) {
  const std::int64_t half = rows_of_head / 2, within = row % rows_of_head;
  return row - within + within % 2 * half + within / 2;
}

}  // namespace twell::io
