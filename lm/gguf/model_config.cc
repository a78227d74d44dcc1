#include "gguf/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "checkpoint/config_names.h"
#include "checkpoint/rope_scaling.h"
#include "files/file_error.h"
#include "gguf/gguf_writer.h"
#include "gguf/tokenizer_keys.h"

namespace twell::io {
namespace {

// Behind the architecture's name. `Key` gives "llama.block_count".
constexpr const char* kLayers = "block_count";
constexpr const char* kContext = "context_length";
constexpr const char* kWidth = "embedding_length";
constexpr const char* kNeurons = "feed_forward_length";
constexpr const char* kHeads = "attention.head_count";
constexpr const char* kKeyHeads = "attention.head_count_kv";
constexpr const char* kKeyLength = "attention.key_length";
constexpr const char* kValueLength = "attention.value_length";
constexpr const char* kNormEps = "attention.layer_norm_rms_epsilon";
constexpr const char* kWindow = "attention.sliding_window";
constexpr const char* kCausal = "attention.causal";
constexpr const char* kRotated = "rope.dimension_count";
constexpr const char* kTheta = "rope.freq_base";
constexpr const char* kScalingType = "rope.scaling.type";
constexpr const char* kScalingFactor = "rope.scaling.factor";
constexpr const char* kOriginalContext = "rope.scaling.original_context_length";
constexpr const char* kBetaFast = "rope.scaling.yarn_beta_fast";
constexpr const char* kBetaSlow = "rope.scaling.yarn_beta_slow";
constexpr const char* kOldScale = "rope.scale_linear";
constexpr const char* kExperts = "expert_count";
constexpr const char* kVocabulary = "vocab_size";

constexpr const char* kRead[] = {
    kLayers,        kContext,         kWidth,    kNeurons,  kHeads,    kKeyHeads, kKeyLength,
    kValueLength,   kNormEps,         kWindow,   kCausal,   kRotated,  kTheta,    kScalingType,
    kScalingFactor, kOriginalContext, kBetaFast, kBetaSlow, kOldScale, kExperts};
// What changes nothing here.
constexpr const char* kHarmless[] = {kVocabulary, "tensor_data_layout", "rope.scaling.finetuned",
                                     "expert_used_count", "pooling_type"};

// Llama 3.1's and 3.2's, in whose files the factors do not say them.
constexpr RopeScaling kLlama3 = {.kind = RopeScaling::Kind::llama3,
                                 .original_max_position_embeddings = 8192,
                                 .low_freq_factor = 1.0,
                                 .high_freq_factor = 4.0};

// By how much each frequency is divided.
std::vector<float> llama3_factors(const RopeScaling& scaling, double theta, std::int64_t dims) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < dims; i += 2) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(dims));
    out.push_back(static_cast<float>(frequency / llama3_frequency(frequency, scaling)));
  }
  return out;
}

class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, const GgufArchitecture& as)
      : file_(file), values_(file.metadata()), as_(as) {}

  ModelConfig read() && {
    config_.architecture = as_.architecture;
    config_.block = as_.architecture->block;
    config_.hidden_act = as_.hidden_act;
    config_.gated = as_.gated;
    config_.hidden_size = integer(kWidth, kMaxHidden);
    config_.intermediate_size = integer(kNeurons, kMaxIntermediate);
    config_.num_hidden_layers = integer(kLayers, kMaxLayers);
    config_.max_position_embeddings = integer(kContext, kMaxPositions);
    config_.block.norm.eps = values_.number(key(kNormEps), 0.0, 1.0);
    read_heads();
    read_rope();
    read_tensors();
    read_ids();
    refuse_unsupported();
    if (const std::string problem = problem_of(config_); !problem.empty()) {
      fail_file(file_.name(), "{}", problem);
    }
    return std::move(config_);
  }

  void refuse_unknown_keys() const {
    const std::string prefix = key("");
    for (const auto& [name, value] : values_.values()) {
      if (!name.starts_with(prefix)) continue;
      const std::string_view rest = std::string_view(name).substr(prefix.size());
      if (std::ranges::find(kRead, rest) != std::end(kRead)) continue;
      if (std::ranges::find(kHarmless, rest) != std::end(kHarmless)) continue;
      fail_unsupported(file_.name(),
                       "the key {} is not known here and may ask for another computation "
                       "(--allow-unused leaves it out)",
                       in_quotes(name));
    }
  }

 private:
  std::string key(const char* name) const { return fmt::format("{}.{}", as_.name, name); }
  std::int64_t integer(const char* name, std::int64_t most,
                       std::optional<std::int64_t> fallback = {}) const {
    return values_.integer(key(name), 1, most, fallback);
  }

  void read_heads() {
    const std::int64_t heads = integer(kHeads, kMaxHeads);
    config_.num_attention_heads = heads;
    config_.num_key_value_heads = integer(kKeyHeads, kMaxHeads, heads);
    if (!values_.has(key(kKeyLength)) && config_.hidden_size % heads != 0) {
      fail_file(file_.name(), "{} {} is no multiple of {} {}, and there is no {}", key(kWidth),
                config_.hidden_size, key(kHeads), heads, key(kKeyLength));
    }
    config_.head_dim =
        integer(kKeyLength, kMaxHidden, std::max<std::int64_t>(config_.hidden_size / heads, 1));
    for (const char* name : {kValueLength, kRotated}) {
      if (integer(name, kMaxHidden, config_.head_dim) != config_.head_dim) {
        fail_unsupported(file_.name(), "{} other than the head's {} is not supported", key(name),
                         config_.head_dim);
      }
    }
  }

  void read_rope() {
    PositionSpec& positions = config_.block.positions;
    positions.theta = values_.number(key(kTheta), 1e-6, kMaxRopeTheta, 10000.0);
    const double old = values_.number(key(kOldScale), 1e-6, kMaxRopeFactor, 1.0);
    const auto type = values_.string(key(kScalingType), old == 1.0 ? "none" : "linear");
    RopeScaling& scaling = positions.scaling;
    using Kind = RopeScaling::Kind;
    if (type == "linear" || type == "yarn") {
      scaling.kind = type == "yarn" ? Kind::yarn : Kind::linear;
      scaling.factor = values_.number(key(kScalingFactor), 1e-6, kMaxRopeFactor, old);
    } else if (type != "none") {
      fail_unsupported(file_.name(), "{} {} is not supported (supported: none, linear, yarn)",
                       key(kScalingType), in_quotes(type));
    }
    if (scaling.kind == Kind::yarn) {
      scaling.original_max_position_embeddings =
          integer(kOriginalContext, kMaxPositions, config_.max_position_embeddings);
      scaling.beta_fast = values_.number(key(kBetaFast), 1e-6, kMaxRopeFactor, 32.0);
      scaling.beta_slow = values_.number(key(kBetaSlow), 1e-6, kMaxRopeFactor, 1.0);
      scaling.attention_factor = yarn_attention_factor(scaling.factor);  // llama.cpp has no other
    }
    if (const GgufTensor* factors = file_.find(kRopeFactors)) read_factors(*factors);
  }

  void read_factors(const GgufTensor& tensor) {
    const std::int64_t count = config_.head_dim / 2;
    if (tensor.type != BlockType::f32 || tensor.shape != std::vector{count}) {
      fail_file(file_.name(), "tensor {} is {} {}, expected F32 {}", in_quotes(kRopeFactors),
                layout_of(tensor.type).name, in_brackets(tensor.shape), in_brackets({count}));
    }
    std::vector<float> factors(static_cast<std::size_t>(count));
    dequantize(tensor.type, file_.data(tensor), count, factors.data());
    PositionSpec& positions = config_.block.positions;
    RopeScaling scaling = kLlama3;
    scaling.factor = factors.empty() ? 0 : factors.back();
    const std::vector<float> expected = llama3_factors(scaling, positions.theta, config_.head_dim);
    // They were computed in f32.
    constexpr float kClose = 1e-4F;
    const bool same = std::ranges::equal(factors, expected, [](float is, float should) {
      return std::abs(is - should) <= kClose * should;
    });
    if (!same || positions.scaling.kind != RopeScaling::Kind::none) {
      fail_unsupported(file_.name(),
                       "tensor {} holds other factors than Llama 3's scaling of rotary "
                       "embeddings (from {} to {} positions), which is not supported",
                       in_quotes(kRopeFactors), kLlama3.original_max_position_embeddings,
                       config_.max_position_embeddings);
    }
    positions.scaling = scaling;
  }

  // What no key says: the vocabulary's size, and what there is.
  void read_tensors() {
    const GgufTensor* embedding = file_.find("token_embd.weight");
    if (embedding == nullptr) {
      fail_file(file_.name(), "has no tensor \"token_embd.weight\"");
    }
    config_.vocab_size = embedding->rows();
    config_.tie_word_embeddings = file_.find("output.weight") == nullptr;
    config_.block.qkv_bias = file_.find("blk.0.attn_q.bias") != nullptr;
    config_.block.o_bias = file_.find("blk.0.attn_output.bias") != nullptr;
    config_.mlp_bias = file_.find("blk.0.ffn_up.bias") != nullptr;
  }

  void add_end(std::int64_t id) {
    const auto narrow = static_cast<std::int32_t>(id);
    std::vector<std::int32_t>& ids = config_.eos_token_ids;
    if (std::ranges::find(ids, narrow) == ids.end()) ids.push_back(narrow);
  }

  void read_ids() {
    const auto tokens = values_.strings(gguf_keys::kTokens);
    const std::int64_t count = tokens.empty() ? config_.vocab_size : std::ssize(tokens);
    const bool of_characters = values_.string(gguf_keys::kModel, "") == gguf_keys::kOfCharacters;
    if (const auto begin = values_.token(gguf_keys::kBegin, count)) {
      config_.bos_token_id = static_cast<std::int32_t>(*begin);
    } else if (of_characters && count > 1) {
      config_.bos_token_id = 1;
    }
    for (const char* name : gguf_keys::kEnds) {
      if (const auto end = values_.token(name, count)) add_end(*end);
    }
    if (of_characters && config_.eos_token_ids.empty() && count > 2) add_end(2);
    for (const char* name : gguf_keys::kEndsOfFiles) {
      if (const auto end = values_.token(name, count)) add_end(*end);
    }
    add_ends_by_name(tokens);
  }

  void add_ends_by_name(std::span<const std::string_view> tokens) {
    const auto place = [&](std::string_view name) { return std::ranges::find(tokens, name); };
    const auto has = [&](std::string_view name) { return place(name) != tokens.end(); };
    // Where these are, <|end|> ends a thought, and the answer follows.
    const bool thinks =
        (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"));
    for (const std::string_view name : gguf_keys::kEndsByName) {
      if (!has(name) || (name == "<|end|>" && thinks)) continue;
      if (name == "</s>" && has("<|tool_response>")) continue;  // a word of Gemma 4
      add_end(place(name) - tokens.begin());
    }
  }

  void refuse_unsupported() const {
    if (values_.integer(key(kExperts), 0, kMaxExperts, 0) > 0) {
      fail_unsupported(file_.name(), "experts ({}) are not supported", key(kExperts));
    }
    if (!values_.boolean(key(kCausal), true)) {
      fail_unsupported(file_.name(), "attention that is not causal is not supported");
    }
    const std::int64_t window = values_.integer(key(kWindow), 0, INT64_MAX, 0);
    if (window > 0 && window < config_.max_position_embeddings) {
      fail_unsupported(file_.name(), "{} {} is less than {} {}: windows are not supported",
                       key(kWindow), window, key(kContext), config_.max_position_embeddings);
    }
  }

  const GgufFile& file_;
  const GgufMetadata& values_;
  const GgufArchitecture& as_;
  ModelConfig config_;
};

}  // namespace

ModelConfig config_of(const GgufFile& file, const GgufArchitecture& as, bool allow_unknown) {
  if (!allow_unknown) ConfigReader(file, as).refuse_unknown_keys();
  return ConfigReader(file, as).read();
}

std::string generation_config_of(const ModelConfig& config) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = config.eos_token_ids;
  return json.empty() ? "" : json.dump(2) + "\n";
}

void write_config(const ModelConfig& config, const GgufArchitecture& as, const std::string& file,
                  GgufWriter& out) {
  const auto put = [&](const char* name, std::int64_t value) {
    out.put(fmt::format("{}.{}", as.name, name), static_cast<std::uint32_t>(value));
  };
  const auto put_number = [&](const char* name, double value) {
    out.put(fmt::format("{}.{}", as.name, name), static_cast<float>(value));
  };
  put(kVocabulary, config.vocab_size);
  put(kContext, config.max_position_embeddings);
  put(kWidth, config.hidden_size);
  put(kLayers, config.num_hidden_layers);
  put(kNeurons, config.intermediate_size);
  put(kHeads, config.num_attention_heads);
  put(kKeyHeads, config.num_key_value_heads);
  put(kKeyLength, config.head_dim);
  put(kValueLength, config.head_dim);
  put(kRotated, config.head_dim);
  put_number(kTheta, config.block.positions.theta);
  put_number(kNormEps, config.block.norm.eps);
  const RopeScaling& scaling = config.block.positions.scaling;
  using Kind = RopeScaling::Kind;
  if (scaling.kind == Kind::linear || scaling.kind == Kind::yarn) {
    const bool yarn = scaling.kind == Kind::yarn;
    out.put(fmt::format("{}.{}", as.name, kScalingType), yarn ? "yarn" : "linear");
    put_number(kScalingFactor, scaling.factor);
    if (yarn) {
      constexpr double kClose = 1e-6;
      const double expected = yarn_attention_factor(scaling.factor);
      if (!scaling.truncate || std::abs(scaling.attention_factor - expected) > kClose) {
        fail_unsupported(file,
                         "yarn with an attention_factor of its own, or without truncate, cannot "
                         "be written to a GGUF file");
      }
      put(kOriginalContext, scaling.original_max_position_embeddings);
      put_number(kBetaFast, scaling.beta_fast);
      put_number(kBetaSlow, scaling.beta_slow);
    }
  }
}

std::vector<float> rope_factors(const ModelConfig& config) {
  const PositionSpec& positions = config.block.positions;
  if (positions.scaling.kind != RopeScaling::Kind::llama3) return {};
  return llama3_factors(positions.scaling, positions.theta, config.head_dim);
}

}  // namespace twell::io
