// config.json of a Hugging Face model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twell/activation.h"

namespace twell::io {

enum class Architecture : std::uint8_t { llama, qwen2 };

// Names in config.json: silu, gelu, gelu_pytorch_tanh, relu, relu2 (also read: relu_squared),
// fat_relu (with the key twell_fat_relu_threshold).
enum class HiddenAct : std::uint8_t { silu, gelu, gelu_tanh, relu, relu_squared, fat_relu };

const char* name_of(Architecture architecture);
const char* name_of(HiddenAct act);
// None if the name is not known.
std::optional<HiddenAct> hidden_act_of(std::string_view name);
// The operators' name for it; none unless exact zeros are the rule, so that the sparse path makes
// sense.
std::optional<Activation> sparse_kind(HiddenAct act);
inline bool yields_zeros(HiddenAct act) { return sparse_kind(act).has_value(); }

struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1.0;
  // llama3 only
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::int64_t hidden_size = 0;        // D
  std::int64_t intermediate_size = 0;  // H
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // biases of q, k, v: llama's attention_bias, always in qwen2
  bool o_bias = false;    // bias of o: llama's attention_bias
  bool mlp_bias = false;
  HiddenAct hidden_act = HiddenAct::silu;
  double fat_relu_threshold = 0.0;  // fat_relu only: x where x > threshold, else 0
  bool gated = true;                // key twell_gated; false: up and down projections only
  // The released SparseLM layout (model_type ends in _sparse_relu): its hidden_act says silu, the
  // model uses ReLU; hidden_act above is relu then. Tensor names may differ, see
  // docs/format.md. Written back as the plain architecture with hidden_act relu.
  bool sparse_lm = false;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;  // files have one number or a list
  std::string dtype = "float32";            // "float32", "bfloat16", "float16"
  // Where config.json names another file of weights, or index, than the usual one: its path within
  // the directory (key transformers_weights). Not written back.
  std::string weights_file;
  // What config.json has besides that changes nothing here: a JSON object, empty where there is
  // nothing. Written back as it was read.
  std::string other_keys;

  bool operator==(const ModelConfig&) const = default;

  // `file` names the source in messages. Throws Error: environment where a value is missing, of
  // the wrong type, out of range or contradicts another; unsupported where it is legal but not
  // known here (architecture, rope type, activation, sliding windows in use). Absent keys are what
  // transformers takes them for.
  static ModelConfig from_json(std::string_view text, const std::string& file);
  std::string to_json() const;
  // Takes over what generation_config.json says: the ids that end a text, where it names any.
  void take_generation_config(std::string_view text, const std::string& file);
  // Range checks of from_json, for configurations made in code. Throws Error (invalid_argument).
  void validate() const;
};

// `path` is the model directory or the config.json itself. As in transformers, the ids that end a
// text are those of generation_config.json beside it, where that names any.
ModelConfig load_config(const std::filesystem::path& path);
void save_config(const std::filesystem::path& directory, const ModelConfig& config);

}  // namespace twell::io
