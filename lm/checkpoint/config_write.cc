#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/architecture.h"
#include "checkpoint/config_names.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson rope_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::llama3:
      return {
          {"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings},
      };
    case RopeScaling::Kind::yarn:
      return {
          {"rope_type", "yarn"},
          {"factor", scaling.factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings},
          {"beta_slow", scaling.beta_slow},
          {"beta_fast", scaling.beta_fast},
          {"truncate", scaling.truncate},
          {"attention_factor", scaling.attention_factor},
      };
  }
  return nullptr;
}

// A NaN is out of every range.
template <class T>
std::string out_of_range(const char* key, T value, T low, T high) {
  if (value >= low && value <= high) return "";
  return fmt::format("{} is {}, expected {} to {}", key, value, low, high);
}

std::string problem_of_sizes(const ModelConfig& c) {
  std::string problem;
  const auto check = [&](auto... arguments) {
    if (problem.empty()) problem = out_of_range(arguments...);
  };
  const std::int64_t one = 1;
  check("hidden_size", c.hidden_size, one, kMaxHidden);
  check("intermediate_size", c.intermediate_size, one, kMaxIntermediate);
  check("num_hidden_layers", c.num_hidden_layers, one, kMaxLayers);
  check("num_attention_heads", c.num_attention_heads, one, kMaxHeads);
  check("num_key_value_heads", c.num_key_value_heads, one, c.num_attention_heads);
  check("head_dim", c.head_dim, one, kMaxHidden / std::max(c.num_attention_heads, one));
  check("vocab_size", c.vocab_size, one, kMaxVocabulary);
  check("max_position_embeddings", c.max_position_embeddings, one, kMaxPositions);
  check(*c.architecture->keys.norm_eps == '\0' ? "eps" : c.architecture->keys.norm_eps,
        c.block.norm.eps, 0.0, 1.0);
  check("rope_theta", c.block.positions.theta, 1e-6, kMaxRopeTheta);
  check("partial_rotary_factor", c.block.positions.share, 0.0, 1.0);
  check("offset of positions", c.block.positions.offset, std::int64_t{0}, kMaxPositions);
  check(kFatReluThreshold, c.fat_relu_threshold, 0.0, 1e6);
  check("unrotated_every", c.block.positions.unrotated_every, std::int64_t{0}, kMaxLayers);
  const ExpertSpec& experts = c.block.experts;
  check("number of experts in all layers", c.num_hidden_layers * experts.count, std::int64_t{0},
        kMaxExperts);
  check("number of experts of a token", experts.active, std::min(one, experts.count),
        experts.count);
  const Scales& scales = c.block.scales;
  check("scale of embeddings", scales.embedding, kSmallestScale, kLargestScale);
  check("depth of scales", scales.depth, 0.0, kLargestScale);
  check("width of scales", scales.width, 0.0, kLargestScale);
  check("cap of logits", scales.logit_cap, 0.0, kLargestScale);
  return problem;
}

std::string problem_of_yarn(const PositionSpec& positions) {
  const RopeScaling& s = positions.scaling;
  if (!(positions.theta > 1)) {
    return fmt::format("rope_theta is {}, expected more than 1 (yarn)", positions.theta);
  }
  if (!(s.beta_slow > 0 && s.beta_slow <= s.beta_fast && s.beta_fast <= kMaxRopeFactor)) {
    return fmt::format("rope beta_slow is {} and beta_fast {}, expected 0 < slow <= fast",
                       s.beta_slow, s.beta_fast);
  }
  return out_of_range("rope attention_factor", s.attention_factor, kSmallestScale, kLargestScale);
}

std::string problem_of_rope(const PositionSpec& positions) {
  const RopeScaling& s = positions.scaling;
  if (s.kind == RopeScaling::Kind::none) return "";
  std::string problem = out_of_range("rope factor", s.factor, 1e-6, kMaxRopeFactor);
  if (s.kind == RopeScaling::Kind::yarn && problem.empty()) problem = problem_of_yarn(positions);
  if (s.kind == RopeScaling::Kind::linear || !problem.empty()) return problem;
  // The two bound a blend whose width is their difference.
  if (s.kind == RopeScaling::Kind::llama3 &&
      !(s.low_freq_factor > 0 && s.low_freq_factor < s.high_freq_factor &&
        s.high_freq_factor <= kMaxRopeFactor)) {
    return fmt::format(
        "rope low_freq_factor is {} and high_freq_factor {}, expected 0 < low < high",
        s.low_freq_factor, s.high_freq_factor);
  }
  return out_of_range<std::int64_t>("rope original_max_position_embeddings",
                                    s.original_max_position_embeddings, 1, kMaxPositions);
}

// Where the architecture has no activation of up by itself.
bool is_drelu(const ModelConfig& c) {
  const bool relu = c.hidden_act == HiddenAct::relu || c.hidden_act == HiddenAct::fat_relu;
  return relu && c.block.up == Activation::relu && c.architecture->block.up == Activation::identity;
}

// A block that config.json cannot say would be another one when it is read again.
std::string problem_of_block(const ModelConfig& c) {
  const Json json = Json::parse(own_keys(c).dump());
  const std::string file = "config.json";
  const ModelConfig read = read_config(JsonObject(json, file), {&c.architecture, 1});
  if (read.block == c.block && read.mlp_bias == c.mlp_bias && read.gated == c.gated &&
      read.num_key_value_heads == c.num_key_value_heads && read.head_dim == c.head_dim) {
    return "";
  }
  return fmt::format(
      "config.json of a {} cannot say the norms, positions, heads, scales, activations or biases "
      "of "
      "these blocks (biases of q, k, v: {}, of o: {}, of the feed-forward layer: {})",
      c.architecture->name, c.block.qkv_bias, c.block.o_bias, c.mlp_bias);
}

}  // namespace

bool stays_within(std::string_view path) {
  const std::filesystem::path parts(path);
  return !parts.is_absolute() && path.find('\0') == path.npos &&
         std::ranges::find(parts, "..") == parts.end();
}

std::string problem_of(const ModelConfig& c) {
  if (std::string problem = problem_of_sizes(c); !problem.empty()) return problem;
  if (std::string problem = problem_of_rope(c.block.positions); !problem.empty()) return problem;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return fmt::format("num_key_value_heads is {}, expected a divisor of num_attention_heads {}",
                       c.num_key_value_heads, c.num_attention_heads);
  }
  if (const std::int64_t rotated = c.rotated_dims(); rotated % 2 != 0) {
    return rotated == c.head_dim
               ? fmt::format("head_dim is {}, expected an even number (rotary embeddings)", rotated)
               : fmt::format("{} of a head's {} dimensions are rotated, expected an even number",
                             rotated, c.head_dim);
  }
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= c.vocab_size; };
  if (c.bos_token_id && outside(*c.bos_token_id)) {
    return fmt::format("bos_token_id is {}, expected below vocab_size {}", *c.bos_token_id,
                       c.vocab_size);
  }
  const auto eos = std::find_if(c.eos_token_ids.begin(), c.eos_token_ids.end(), outside);
  if (eos != c.eos_token_ids.end()) {
    return fmt::format("eos_token_id is {}, expected below vocab_size {}", *eos, c.vocab_size);
  }
  if (c.dtype != "float32" && c.dtype != "bfloat16" && c.dtype != "float16") {
    return fmt::format("dtype is {}, expected float32, bfloat16 or float16", in_quotes(c.dtype));
  }
  return problem_of_block(c);
}

std::int64_t ModelConfig::neurons_of_token() const {
  return intermediate_size * std::max<std::int64_t>(1, block.experts.active);
}

std::int64_t ModelConfig::rotated_dims() const {
  if (block.positions.kind != PositionSpec::Kind::rope) return 0;
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * block.positions.share);
}

bool ModelConfig::rotates(std::int64_t layer) const {
  const std::int64_t every = block.positions.unrotated_every;
  return every == 0 || layer % every != 0;
}

void ModelConfig::validate() const {
  if (const std::string problem = problem_of(*this); !problem.empty()) {
    fail_argument("ModelConfig", "{}", problem);
  }
}

OrderedJson own_keys(const ModelConfig& c) {
  const Architecture& is = *c.architecture;
  const ConfigKeys& keys = is.keys;
  OrderedJson json = {{"architectures", {is.class_name}}, {"model_type", is.name}};
  const auto put = [&](const char* key, const auto& value) {
    if (*key != '\0') json[key] = value;
  };
  put(keys.hidden_size, c.hidden_size);
  put(keys.intermediate_size, c.intermediate_size);
  put(keys.num_hidden_layers, c.num_hidden_layers);
  put(keys.num_attention_heads, c.num_attention_heads);
  put(keys.num_key_value_heads, c.num_key_value_heads);
  put(keys.head_dim, c.head_dim);
  put("vocab_size", c.vocab_size);
  put(keys.max_position_embeddings, c.max_position_embeddings);
  put(keys.norm_eps, c.block.norm.eps);
  const bool fat_relu = c.hidden_act == HiddenAct::fat_relu;
  put(keys.hidden_act, is_drelu(c) ? kDRelu : fat_relu ? kFatRelu : name_of(c.hidden_act));
  put("tie_word_embeddings", c.tie_word_embeddings);
  const PositionSpec& positions = c.block.positions;
  if (positions.kind == PositionSpec::Kind::rope) {
    // Both spellings: rope_parameters is read by transformers 5 and newer, the others by older
    // ones.
    OrderedJson scaling = rope_json(positions.scaling);
    json["rope_theta"] = positions.theta;
    json["rope_scaling"] = scaling;
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling["rope_theta"] = positions.theta;
    if (is.block.positions.share != 1.0) {
      json["partial_rotary_factor"] = scaling["partial_rotary_factor"] = positions.share;
    }
    json["rope_parameters"] = scaling;
  }
  if (is.write != nullptr) is.write(c, json);
  if (c.gated != is.gated) json["twell_gated"] = c.gated;
  if (fat_relu) json[kFatReluThreshold] = c.fat_relu_threshold;
  json["bos_token_id"] = c.bos_token_id ? OrderedJson(*c.bos_token_id) : OrderedJson(nullptr);
  json["eos_token_id"] = c.eos_token_ids.empty()       ? OrderedJson(nullptr)
                         : c.eos_token_ids.size() == 1 ? OrderedJson(c.eos_token_ids[0])
                                                       : OrderedJson(c.eos_token_ids);
  json["torch_dtype"] = c.dtype;
  return json;
}

std::string ModelConfig::to_json() const {
  OrderedJson json = own_keys(*this);
  if (quantization) json["quantization_config"] = quantization->to_json();
  if (!other_keys.empty()) {
    const OrderedJson others = OrderedJson::parse(other_keys);
    for (const auto& [key, value] : others.items()) {
      if (!json.contains(key)) json[key] = value;
    }
  }
  return python_json(json);
}

}  // namespace twell::io
