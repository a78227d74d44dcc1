#include "measure/eager_model.h"

#include <torch/types.h>

#include <map>
#include <string>

#include "decoder/linear.h"
#include "decoder/parameters.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

at::Tensor linear(const at::Tensor& x, const Linear& layer) {
  // at::linear, but where PyTorch has no GEMM for bf16: a baseline of 10 GFLOP/s helps nobody.
  return linear_of(x, layer.weight.tensor, layer.bias.tensor);
}

at::Tensor turned_half(const at::Tensor& x) {
  const std::int64_t half = x.size(-1) / 2;
  return at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
}

at::Tensor rotated(const at::Tensor& x, const EagerModel::Angles& angles) {
  return x * angles.cos + turned_half(x) * angles.sin;
}

ActivationChoice activation_of(const io::ModelConfig& config) {
  return {config.hidden_act, static_cast<float>(config.fat_relu_threshold)};
}

}  // namespace

bool EagerModel::serves(const io::ModelConfig& config) {
  io::BlockSpec block = config.block;
  block.norm.eps = io::BlockSpec().norm.eps;
  block.positions.theta = io::BlockSpec().positions.theta;
  block.positions.scaling = {};
  block.qkv_bias = block.o_bias = false;
  return block == io::BlockSpec() && !config.quantization;
}

EagerModel::EagerModel(const io::ModelConfig& config, const NamedTensors& tensors)
    : config_(config), weights_(weights_of(config)) {
  if (!serves(config)) {
    throw Error(ErrorKind::unsupported, "eager model",
                "is written for models of Llama's form, without quantised weights");
  }
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for_each_parameter(weights_, [&](Parameter& parameter) {
    const auto found = by_name.find(parameter.name);
    if (found == by_name.end()) {
      throw Error(ErrorKind::invalid_argument, "eager model", "no tensor " + parameter.name);
    }
    parameter.tensor = found->second;
  });
  const std::vector<float> frequencies = rope_frequencies(config);
  frequencies_ = at::tensor(frequencies, at::kFloat).to(device());
}

void EagerModel::Cache::crop(std::int64_t length) {
  for (auto* tensors : {&keys, &values}) {
    for (at::Tensor& tensor : *tensors) tensor = tensor.narrow(2, 0, length);
  }
}

std::int64_t EagerModel::Cache::bytes() const {
  std::size_t sum = 0;
  for (const auto* tensors : {&keys, &values}) {
    for (const at::Tensor& tensor : *tensors) sum += tensor.nbytes();
  }
  return static_cast<std::int64_t>(sum);
}

std::int64_t EagerModel::weight_bytes() const {
  std::size_t sum = 0;
  for_each_parameter(weights_,
                     [&sum](const Parameter& parameter) { sum += parameter.tensor.nbytes(); });
  return static_cast<std::int64_t>(sum);
}

EagerModel::Angles EagerModel::angles(std::int64_t first, std::int64_t count,
                                      at::ScalarType type) const {
  const at::Tensor positions = at::arange(first, first + count, frequencies_.options());
  const at::Tensor half = at::outer(positions, frequencies_);
  const at::Tensor all = at::cat({half, half}, -1);
  const double factor = config_.block.positions.scaling.attention_factor;
  return {(all.cos() * factor).to(type), (all.sin() * factor).to(type)};
}

at::Tensor EagerModel::norm(const at::Tensor& x, const Norm& norm) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, true) + norm.spec.eps);
  return norm.weight.tensor * (wide * scale).to(x.scalar_type());
}

at::Tensor EagerModel::embed(const at::Tensor& tokens) const {
  return at::embedding(weights_.embedding.tensor, tokens);
}

at::Tensor EagerModel::attention(std::int64_t layer, const at::Tensor& x, const Angles& angles,
                                 Cache* cache) const {
  const auto index = static_cast<std::size_t>(layer);
  const Attention& of = weights_.blocks[index].attention;
  const auto heads = [&](const Linear& projection) {
    return linear(x, projection).view({x.size(0), x.size(1), -1, config_.head_dim}).transpose(1, 2);
  };
  const at::Tensor q = rotated(heads(of.q), angles);
  at::Tensor k = rotated(heads(of.k), angles);
  at::Tensor v = heads(of.v);
  if (cache != nullptr) {
    if (cache->keys.size() <= index) {
      cache->keys.push_back(k);
      cache->values.push_back(v);
    } else {
      cache->keys[index] = at::cat({cache->keys[index], k}, 2);
      cache->values[index] = at::cat({cache->values[index], v}, 2);
    }
    k = cache->keys[index];
    v = cache->values[index];
  }
  const bool first = k.size(2) == q.size(2);
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, k, v, {}, 0.0, /*is_causal=*/first && q.size(2) > 1, std::nullopt,
      /*enable_gqa=*/q.size(1) > k.size(1));
  return linear(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}), of.o);
}

at::Tensor EagerModel::feed_forward(std::int64_t layer, const at::Tensor& x) const {
  const FfnTensors& of = weights_.blocks[static_cast<std::size_t>(layer)].ffn_from.front();
  const ActivationChoice activation = activation_of(config_);
  if (!config_.gated) return linear(activate(linear(x, of.up), activation), of.down);
  return linear(activate(linear(x, of.gate), activation) * linear(x, of.up), of.down);
}

at::Tensor EagerModel::block(std::int64_t layer, const at::Tensor& x, const Angles& angles,
                             Cache* cache) const {
  const Block& of = weights_.blocks[static_cast<std::size_t>(layer)];
  const at::Tensor attended =
      x + attention(layer, norm(x, of.attention_norms.before), angles, cache);
  return attended + feed_forward(layer, norm(attended, of.ffn_norms.before));
}

at::Tensor EagerModel::head(const at::Tensor& normalised) const {
  const Parameter& weight = config_.tie_word_embeddings ? weights_.embedding : weights_.head.weight;
  return linear_of(normalised, weight.tensor);
}

at::Tensor EagerModel::hidden_states(const at::Tensor& tokens, Cache* cache) const {
  at::Tensor x = embed(tokens);
  const std::int64_t before = cache != nullptr ? cache->length() : 0;
  const Angles of = angles(before, tokens.size(1), x.scalar_type());
  for (std::int64_t layer = 0; layer < layers(); ++layer) x = block(layer, x, of, cache);
  return final_norm(x);
}

}  // namespace twell::lm
