// config.json of a Hugging Face model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block_spec.h"
#include "checkpoint/quantization_config.h"
#include "twell/activation.h"

namespace twell::io {

struct Architecture;  // architecture.h
extern const Architecture kLlama;
std::span<const Architecture* const> architectures();  // all that there are

enum class HiddenAct : std::uint8_t { silu, gelu, gelu_tanh, relu, relu_squared, fat_relu };
// A FATReLU as it is written, with the key hidden_act_param.
inline constexpr std::string_view kFatRelu = "fatrelu";
// Names in config.json. The first name of each is the one that is written, but for kFatRelu.
// Besides there is drelu: relu, or fat_relu with that key, and relu of BlockSpec::up.
struct ActName {
  std::string_view name;
  HiddenAct act;
  std::optional<Activation> sparse = std::nullopt;  // where exact zeros are the rule
};
inline constexpr ActName kActs[] = {
    {"silu", HiddenAct::silu},
    {"gelu", HiddenAct::gelu},
    {"gelu_pytorch_tanh", HiddenAct::gelu_tanh},
    {"relu", HiddenAct::relu, Activation::relu},
    {"relu2", HiddenAct::relu_squared, Activation::relu_squared},
    {"fat_relu", HiddenAct::fat_relu, Activation::fat_relu},  // read with twell_fat_relu_threshold
    {"swish", HiddenAct::silu},
    {"relu_squared", HiddenAct::relu_squared},
    {kFatRelu, HiddenAct::fat_relu},
    {"gelu_tanh", HiddenAct::gelu_tanh},
};

const char* name_of(HiddenAct act);
// None if the name is not known.
std::optional<HiddenAct> hidden_act_of(std::string_view name);
// The operators' name for it; none unless exact zeros are the rule, so that the sparse path makes
// sense.
std::optional<Activation> sparse_kind(HiddenAct act);
inline bool yields_zeros(HiddenAct act) { return sparse_kind(act).has_value(); }
std::string sparse_names();  // for messages: "relu, relu2, ..."

struct ModelConfig {
  const Architecture* architecture = &kLlama;  // never null; names tensors and keys
  std::int64_t hidden_size = 0;                // D
  std::int64_t intermediate_size = 0;          // H, of each expert where there are several
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 2048;
  BlockSpec block;
  bool tie_word_embeddings = false;
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
  std::optional<QuantizationConfig> quantization;  // absent: all weights are floating-point numbers
  // What config.json has besides that changes nothing here: a JSON object, empty where there is
  // nothing. Written back as it was read.
  std::string other_keys;

  bool operator==(const ModelConfig&) const = default;

  // `file` names the source in messages; `known` are the architectures that it may name. Throws
  // Error: environment where a value is missing, of the wrong type, out of range or contradicts
  // another; unsupported where it is legal but not known here (architecture, rope type, activation,
  // sliding windows in use). Absent keys are what transformers takes them for.
  static ModelConfig from_json(std::string_view text, const std::string& file,
                               std::span<const Architecture* const> known = architectures());
  std::string to_json() const;
  // Takes over what generation_config.json says: the ids that end a text, where it names any.
  void take_generation_config(std::string_view text, const std::string& file);
  // Range checks of from_json, and whether config.json can say it, for configurations made in code.
  // Throws Error (invalid_argument).
  void validate() const;

  // That a token's activations have in a layer: H, of each of its experts where there are several.
  std::int64_t neurons_of_token() const;
  // Of a head's dimensions, those that are rotated; 0 without rotary embeddings.
  std::int64_t rotated_dims() const;
  bool rotates(std::int64_t layer) const;
};

// `path` is the model directory or the config.json itself. As in transformers, the ids that end a
// text are those of generation_config.json beside it, where that names any.
ModelConfig load_config(const std::filesystem::path& path,
                        std::span<const Architecture* const> known = architectures());
void save_config(const std::filesystem::path& directory, const ModelConfig& config);

}  // namespace twell::io
