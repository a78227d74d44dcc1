#include <algorithm>
#include <nlohmann/json.hpp>

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
  check("rms_norm_eps", c.rms_norm_eps, 0.0, 1.0);
  check("rope_theta", c.rope_theta, 1e-6, kMaxRopeTheta);
  check("twell_fat_relu_threshold", c.fat_relu_threshold, 0.0, 1e6);
  return problem;
}

std::string problem_of_rope(const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::none) return "";
  std::string problem = out_of_range("rope factor", s.factor, 1e-6, kMaxRopeFactor);
  if (s.kind == RopeScaling::Kind::linear || !problem.empty()) return problem;
  // The two bound a blend whose width is their difference.
  if (!(s.low_freq_factor > 0 && s.low_freq_factor < s.high_freq_factor &&
        s.high_freq_factor <= kMaxRopeFactor)) {
    return fmt::format(
        "rope low_freq_factor is {} and high_freq_factor {}, expected 0 < low < high",
        s.low_freq_factor, s.high_freq_factor);
  }
  return out_of_range<std::int64_t>("rope original_max_position_embeddings",
                                    s.original_max_position_embeddings, 1, kMaxPositions);
}

}  // namespace

bool stays_within(std::string_view path) {
  const std::filesystem::path parts(path);
  return !parts.is_absolute() && path.find('\0') == path.npos &&
         std::ranges::find(parts, "..") == parts.end();
}

std::string problem_of(const ModelConfig& c) {
  if (std::string problem = problem_of_sizes(c); !problem.empty()) return problem;
  if (std::string problem = problem_of_rope(c.rope_scaling); !problem.empty()) return problem;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return fmt::format("num_key_value_heads is {}, expected a divisor of num_attention_heads {}",
                       c.num_key_value_heads, c.num_attention_heads);
  }
  if (c.head_dim % 2 != 0) {
    return fmt::format("head_dim is {}, expected an even number (rotary embeddings)", c.head_dim);
  }
  const bool llama = c.architecture == Architecture::llama;
  if (llama ? c.qkv_bias != c.o_bias : (!c.qkv_bias || c.o_bias || c.mlp_bias)) {
    return llama ? "llama has biases on all of q, k, v, o or on none"
                 : "qwen2 has biases on q, k, v and nowhere else";
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
  return "";
}

void ModelConfig::validate() const {
  if (const std::string problem = problem_of(*this); !problem.empty()) {
    fail_argument("ModelConfig", "{}", problem);
  }
}

std::string ModelConfig::to_json() const {
  const bool llama = architecture == Architecture::llama;
  OrderedJson json = {
      {"architectures", {llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"}},
      {"model_type", name_of(architecture)},
      {"hidden_size", hidden_size},
      {"intermediate_size", intermediate_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"num_key_value_heads", num_key_value_heads},
      {"head_dim", head_dim},
      {"vocab_size", vocab_size},
      {"max_position_embeddings", max_position_embeddings},
      {"rms_norm_eps", rms_norm_eps},
      {"hidden_act", name_of(hidden_act)},
      {"tie_word_embeddings", tie_word_embeddings},
  };
  // Both spellings: rope_parameters is read by transformers 5 and newer, the others by older ones.
  OrderedJson scaling = rope_json(rope_scaling);
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = scaling;
  if (scaling.is_null()) scaling = {{"rope_type", "default"}};
  scaling["rope_theta"] = rope_theta;
  json["rope_parameters"] = scaling;
  if (llama) {
    json["attention_bias"] = qkv_bias;
    json["mlp_bias"] = mlp_bias;
  } else {
    json["use_sliding_window"] = false;
  }
  if (!gated) json["twell_gated"] = false;
  if (hidden_act == HiddenAct::fat_relu) json["twell_fat_relu_threshold"] = fat_relu_threshold;
  json["bos_token_id"] = bos_token_id ? OrderedJson(*bos_token_id) : OrderedJson(nullptr);
  json["eos_token_id"] = eos_token_ids.empty()       ? OrderedJson(nullptr)
                         : eos_token_ids.size() == 1 ? OrderedJson(eos_token_ids[0])
                                                     : OrderedJson(eos_token_ids);
  json["torch_dtype"] = dtype;
  if (!other_keys.empty()) json.update(OrderedJson::parse(other_keys));
  return python_json(json);
}

}  // namespace twell::io
