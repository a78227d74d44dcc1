#include "checkpoint/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "checkpoint/architecture.h"
#include "checkpoint/config_names.h"
#include "checkpoint/rope_scaling.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

constexpr std::string_view kSparseSuffix = "_sparse_relu";
constexpr std::int64_t kMaxToken = INT32_MAX;

const ActName& entry_of(HiddenAct act) {
  return *std::find_if(std::begin(kActs), std::end(kActs),
                       [&](const ActName& entry) { return entry.act == act; });
}

struct ModelType {
  const Architecture* architecture;
  bool sparse_lm;
};

ModelType read_model_type(const JsonObject& json, std::span<const Architecture* const> known) {
  std::string type = json.string("model_type", "");
  if (type.empty() && json.has("architectures")) {
    // Very old files have the class name only.
    const auto& classes = json.array("architectures");
    const std::string name =
        classes.empty() || !classes[0].is_string() ? "" : classes[0].get<std::string>();
    for (const Architecture* architecture : known) {
      if (name == architecture->class_name) type = architecture->name;
    }
  }
  if (type.empty()) fail_file(json.file(), "the key model_type is missing");
  std::string_view base = type;
  const bool sparse_lm = base.ends_with(kSparseSuffix);
  if (sparse_lm) base.remove_suffix(kSparseSuffix.size());
  std::vector<std::string_view> names;
  for (const Architecture* architecture : known) {
    if (base == architecture->name) return {architecture, sparse_lm};
    names.emplace_back(architecture->name);
  }
  fail_unsupported(json.file(),
                   "model_type {} is not supported (supported: {}, also with the suffix {})",
                   in_quotes(type), fmt::join(names, ", "), kSparseSuffix);
}

HiddenAct read_act(const JsonObject& json, const char* key, HiddenAct fallback) {
  if (!json.has(key)) return fallback;
  const std::string name = json.string(key);
  if (const std::optional<HiddenAct> act = hidden_act_of(name)) return *act;
  if (name.find("_to_relu_") != name.npos || name.find("_to_drelu_") != name.npos) {
    fail_unsupported(
        json.file(),
        "{} {} is that of a training on its way to ReLU; train it to the end in Python "
        "(twell.hf.AnnealingCallback)",
        key, in_quotes(name));
  }
  std::vector<std::string_view> written;
  for (const ActName& entry : kActs) {
    if (entry_of(entry.act).name == entry.name) written.push_back(entry.name);
  }
  written.push_back(kDRelu);
  fail_unsupported(json.file(), "{} {} is not supported (supported: {})", key, in_quotes(name),
                   fmt::join(written, ", "));
}

double read_threshold(const JsonObject& json, const char* key) {
  if (json.has(key) && json.value(key).is_object()) {
    fail_unsupported(json.file(),
                     "{} has a threshold for each layer, as in the middle of a training; give all "
                     "layers one in Python (twell.hf.fold_thresholds)",
                     key);
  }
  return json.number(key, 0.0, 1e6);
}

void read_activation(const JsonObject& json, const char* key, HiddenAct fallback,
                     ModelConfig& out) {
  if (json.has(key) && json.string(key) == kDRelu) {
    if (!out.gated) {
      fail_unsupported(json.file(), "{} {} of a layer without a gate is not supported", key,
                       in_quotes(kDRelu));
    }
    const bool fat = json.has(kFatReluThreshold);
    out.block.up = Activation::relu;
    out.hidden_act = fat ? HiddenAct::fat_relu : HiddenAct::relu;
    if (fat) out.fat_relu_threshold = read_threshold(json, kFatReluThreshold);
    return;
  }
  out.hidden_act = read_act(json, key, fallback);
  if (out.hidden_act == HiddenAct::fat_relu) {
    const bool published = json.has(key) && json.string(key) == kFatRelu;
    const char* threshold = published ? kFatReluThreshold : kOldFatReluThreshold;
    out.fat_relu_threshold = read_threshold(json, threshold);
  }
}

// What `transformers` takes for attention_factor where a file does not say.
double yarn_factor_of(const JsonObject& rope, double factor) {
  const auto scale = [&](double times) { return yarn_attention_factor(factor, times); };
  const auto number = [&](const char* key) { return rope.number(key, 0.0, kMaxRopeFactor, 0.0); };
  const double one = number("mscale"), all = number("mscale_all_dim");
  return one > 0 && all > 0 ? scale(one) / scale(all) : scale(1.0);
}

void read_yarn(const JsonObject& rope, RopeScaling& out) {
  const auto positive = [&](const char* key, double fallback) {
    const double value = rope.number(key, 0.0, kMaxRopeFactor, fallback);
    return value > 0 ? value : fallback;
  };
  out.beta_slow = positive("beta_slow", 1.0);
  out.beta_fast = positive("beta_fast", 32.0);
  out.truncate = rope.boolean("truncate", true);
  const char* key = "attention_factor";
  out.attention_factor = rope.has(key) ? rope.number(key, kSmallestScale, kLargestScale)
                                       : yarn_factor_of(rope, out.factor);
}

// Older files: rope_theta beside rope_scaling (null or an object). Newer ones: rope_parameters
// with both. Where both are there, `transformers` takes rope_scaling and forgets rope_parameters; a
// rope_theta in the one that counts wins over that beside it.
void read_rope(const JsonObject& json, std::int64_t context, PositionSpec& out) {
  const bool has_new = json.has("rope_parameters");
  const bool has_old = json.has("rope_scaling") && !json.object("rope_scaling").json().empty();
  constexpr double kSmallest = 1e-6;
  const double share = out.share;
  const auto read_share = [&](const JsonObject& from) {
    out.share = from.number("partial_rotary_factor", 0.0, 1.0, out.share);
    if (share == 1.0 && out.share != share) {
      fail_unsupported(json.file(), "partial_rotary_factor other than 1 is not supported");
    }
  };
  out.theta = json.number("rope_theta", kSmallest, kMaxRopeTheta, out.theta);
  read_share(json);
  if (!has_new && !has_old) return;
  const JsonObject rope = json.object(has_old ? "rope_scaling" : "rope_parameters");
  out.theta = rope.number("rope_theta", kSmallest, kMaxRopeTheta, out.theta);
  read_share(rope);
  for (const auto& entry : rope.json().items()) {
    if (entry.value().is_object()) {
      fail_unsupported(json.file(), "rope parameters that differ by layer ({}) are not supported",
                       in_quotes(entry.key()));
    }
  }
  const std::string type = rope.string("rope_type", rope.string("type", "default"));
  RopeScaling& scaling = out.scaling;
  if (type == "default") return;
  using Kind = RopeScaling::Kind;
  scaling.kind = type == "linear"   ? Kind::linear
                 : type == "llama3" ? Kind::llama3
                 : type == "yarn"   ? Kind::yarn
                                    : Kind::none;
  if (scaling.kind == Kind::none) {
    fail_unsupported(json.file(),
                     "rope type {} is not supported (supported: default, linear, llama3, yarn)",
                     in_quotes(type));
  }
  scaling.factor = rope.number("factor", kSmallest, kMaxRopeFactor);
  if (scaling.kind == Kind::linear) return;
  const char* original = "original_max_position_embeddings";  // one outside wins
  scaling.original_max_position_embeddings =
      (json.has(original) ? json : rope).integer(original, 1, kMaxPositions, context);
  if (scaling.kind == Kind::yarn) {
    read_yarn(rope, scaling);
    return;
  }
  scaling.low_freq_factor = rope.number("low_freq_factor", kSmallest, kMaxRopeFactor);
  scaling.high_freq_factor = rope.number("high_freq_factor", kSmallest, kMaxRopeFactor);
}

// Some files say -1 for none, or that without its sign.
bool names_token(const JsonObject& json, const char* key) {
  return json.has(key) && json.value(key) != -1 && json.value(key) != UINT32_MAX;
}

std::vector<std::int32_t> read_eos(const JsonObject& json) {
  const char* key = "eos_token_id";
  if (!names_token(json, key)) return {};
  if (!json.value(key).is_array()) {
    return {static_cast<std::int32_t>(json.integer(key, 0, kMaxToken))};
  }
  std::vector<std::int32_t> out;
  for (const Json& id : json.array(key)) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxToken) {
      fail_file(json.file(), "{} holds {}, expected token ids", key, kind_of(id));
    }
    out.push_back(id.get<std::int32_t>());
  }
  return out;
}

void read_tokens(const JsonObject& json, const Architecture& is, ModelConfig& out) {
  if (names_token(json, "bos_token_id")) {
    out.bos_token_id = static_cast<std::int32_t>(json.integer("bos_token_id", 0, kMaxToken));
  }
  out.eos_token_ids = read_eos(json);
  const auto unsaid = [&](const char* key, const std::optional<std::int32_t>& id) {
    return !json.json().contains(key) && id && *id < out.vocab_size;
  };
  if (unsaid("bos_token_id", is.bos_token_id)) out.bos_token_id = is.bos_token_id;
  if (unsaid("eos_token_id", is.eos_token_id)) out.eos_token_ids = {*is.eos_token_id};
}

std::string read_weights_file(const JsonObject& json) {
  const char* key = "transformers_weights";
  std::string name = json.string(key, "");
  const bool known = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  if (!name.empty() && !(known && stays_within(name))) {
    fail_file(json.file(), "{} is {}, expected a .safetensors file of this directory, or an index",
              key, in_quotes(name));
  }
  return name;
}

// Of what to_json() does not write: other code, where the weights are, other names of the type.
constexpr std::string_view kLeftOut[] = {"dtype", "auto_map", "quantization_config",
                                         "transformers_weights", kOldFatReluThreshold};

std::string read_other_keys(const JsonObject& json, const ModelConfig& config) {
  const auto own = own_keys(config);
  Json out = Json::object();
  for (const auto& [key, value] : json.json().items()) {
    if (own.contains(key) || std::ranges::find(kLeftOut, key) != std::end(kLeftOut)) continue;
    // Of a SparseLM file twell_gated says nothing; as the plain architecture is written it would.
    if (config.sparse_lm && (key.starts_with("sparsity_") || key == "twell_gated")) continue;
    out[key] = value;
  }
  return out.empty() ? "" : out.dump();
}

std::string read_dtype(const JsonObject& json) {
  std::string name = json.string("dtype", json.string("torch_dtype", "float32"));
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "auto") return "float32";
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    fail_unsupported(json.file(),
                     "dtype {} is not supported (supported: float32, bfloat16, float16)",
                     in_quotes(name));
  }
  return name;
}

void refuse_unsupported(const JsonObject& json) {
  if (!json.has("layer_types")) return;
  for (const Json& type : json.array("layer_types")) {
    if (type != "full_attention") {
      fail_unsupported(json.file(), "layer_types other than full_attention are not supported");
    }
  }
}

// Of the value of a key that the architecture may not have.
std::int64_t read_size(const JsonObject& json, const char* key, std::int64_t most,
                       std::optional<std::int64_t> fallback = {}) {
  if (*key == '\0') return fallback.value();
  return json.integer(key, 1, most, fallback);
}

void read_heads(const JsonObject& json, const Architecture& is, ModelConfig& out) {
  const ConfigKeys& keys = is.keys;
  out.num_attention_heads = json.integer(keys.num_attention_heads, 1, kMaxHeads);
  // null is as many as there are heads.
  const bool absent = is.num_key_value_heads > 0 && !json.json().contains(keys.num_key_value_heads);
  out.num_key_value_heads = read_size(json, keys.num_key_value_heads, kMaxHeads,
                                      absent ? is.num_key_value_heads : out.num_attention_heads);
  const bool says = *keys.head_dim != '\0' && json.has(keys.head_dim);
  if (!says && is.head_dim == 0 && out.hidden_size % out.num_attention_heads != 0) {
    fail_file(json.file(), "{} {} is no multiple of {} {}{}", keys.hidden_size, out.hidden_size,
              keys.num_attention_heads, out.num_attention_heads,
              *keys.head_dim == '\0' ? "" : ", and there is no head_dim");
  }
  out.head_dim =
      read_size(json, keys.head_dim, kMaxHidden,
                is.head_dim > 0 ? is.head_dim : out.hidden_size / out.num_attention_heads);
}

}  // namespace

const char* name_of(HiddenAct act) { return entry_of(act).name.data(); }

std::optional<HiddenAct> hidden_act_of(std::string_view name) {
  for (const ActName& entry : kActs) {
    if (name == entry.name) return entry.act;
  }
  return std::nullopt;
}

std::optional<Activation> sparse_kind(HiddenAct act) { return entry_of(act).sparse; }

std::string sparse_names() {
  std::string out;
  for (const ActName& entry : kActs) {
    if (entry.sparse) out.append(out.empty() ? "" : ", ").append(entry.name);
  }
  return out;
}

ModelConfig read_config(const JsonObject& json, std::span<const Architecture* const> known) {
  ModelConfig out;
  const auto [architecture, sparse_lm] = read_model_type(json, known);
  const Architecture& is = *architecture;
  const ConfigKeys& keys = is.keys;
  out.architecture = architecture;
  out.sparse_lm = sparse_lm;
  out.block = is.block;
  out.hidden_size = json.integer(keys.hidden_size, 1, kMaxHidden);
  out.intermediate_size = json.integer(keys.intermediate_size, 1, kMaxIntermediate);
  out.num_hidden_layers = json.integer(keys.num_hidden_layers, 1, kMaxLayers);
  refuse_unsupported(json);
  read_heads(json, is, out);
  out.vocab_size = json.integer("vocab_size", 1, kMaxVocabulary);
  out.max_position_embeddings =
      json.integer(keys.max_position_embeddings, 1, kMaxPositions, is.max_position_embeddings);
  double& eps = out.block.norm.eps;
  if (*keys.norm_eps != '\0') eps = json.number(keys.norm_eps, 0.0, 1.0, eps);
  if (out.block.positions.kind == PositionSpec::Kind::rope) {
    read_rope(json, out.max_position_embeddings, out.block.positions);
  }
  out.tie_word_embeddings = json.boolean("tie_word_embeddings", is.tie_word_embeddings);
  out.mlp_bias = is.mlp_bias;
  out.gated = json.boolean("twell_gated", is.gated);
  read_activation(json, keys.hidden_act, is.hidden_act, out);
  if (sparse_lm) {
    out.hidden_act = HiddenAct::relu;
    out.gated = json.boolean("sparsity_gated_mlp", is.gated);
    out.intermediate_size =
        json.integer("sparsity_new_intermediate_size", 1, kMaxIntermediate, out.intermediate_size);
  }
  read_tokens(json, is, out);
  out.dtype = read_dtype(json);
  out.weights_file = read_weights_file(json);
  if (const char* key = "quantization_config"; json.has(key)) {
    out.quantization = QuantizationConfig::from_json(json.object(key));
  }
  if (is.read != nullptr) is.read(json, out);
  return out;
}

ModelConfig ModelConfig::from_json(std::string_view text, const std::string& file,
                                   std::span<const Architecture* const> known) {
  const Json document = parse_python_json(text, file);
  const JsonObject json(document, file);
  ModelConfig out = read_config(json, known);
  if (const std::string problem = problem_of(out); !problem.empty()) fail_file(file, "{}", problem);
  out.other_keys = read_other_keys(json, out);
  return out;
}

void ModelConfig::take_generation_config(std::string_view text, const std::string& file) {
  const Json document = parse_python_json(text, file);
  const std::vector<std::int32_t> ids = read_eos(JsonObject(document, file));
  if (ids.empty()) return;
  eos_token_ids = ids;
  if (const std::string problem = problem_of(*this); !problem.empty())
    fail_file(file, "{}", problem);
}

ModelConfig load_config(const std::filesystem::path& path,
                        std::span<const Architecture* const> known) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  constexpr std::uint64_t kLongest = 16ULL << 20;
  ModelConfig out = ModelConfig::from_json(read_file(file, kLongest), file.string(), known);
  const auto generation = file.parent_path() / "generation_config.json";
  if (std::filesystem::exists(generation, ignored)) {
    out.take_generation_config(read_file(generation, kLongest), generation.string());
  }
  return out;
}

void save_config(const std::filesystem::path& directory, const ModelConfig& config) {
  config.validate();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_file(directory.string(), "cannot be made: {}", error.message());
  write_file_atomically(directory / "config.json", config.to_json());
}

}  // namespace twell::io
