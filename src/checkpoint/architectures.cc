// The architectures that are known. A row says what is its own; all else is Llama's.
#include "checkpoint/architecture.h"
#include "checkpoint/config_names.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

// --- Llama 1 to 3, SmolLM2, the paper's models ---

void read_llama(const JsonObject& json, ModelConfig& out) {
  out.block.qkv_bias = out.block.o_bias = json.boolean("attention_bias", false);
  out.mlp_bias = json.boolean("mlp_bias", false);
  // A file that does not say has these; null says that there are none.
  constexpr std::int32_t kBos = 1, kEos = 2;
  if (out.vocab_size <= kEos) return;
  if (!json.json().contains("bos_token_id")) out.bos_token_id = kBos;
  if (!json.json().contains("eos_token_id")) out.eos_token_ids = {kEos};
}

void write_llama(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.block.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
}

// --- Qwen2: Llama with biases of q, k and v ---

void read_qwen2(const JsonObject& json, ModelConfig& out) {
  if (json.has("layer_types") || !json.boolean("use_sliding_window", false)) return;
  // Windows of the first max_window_layers layers see everything all the same.
  const bool has_window = !json.json().contains("sliding_window") || json.has("sliding_window");
  const auto full = json.integer("max_window_layers", 0, kMaxLayers, 28);
  if (has_window && full < out.num_hidden_layers) {
    fail_unsupported(json.file(), "use_sliding_window is not supported");
  }
}

void write_qwen2(const ModelConfig& /*config*/, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
}

}  // namespace

const Architecture kLlama = {
    .name = "llama",
    .class_name = "LlamaForCausalLM",
    .read = read_llama,
    .write = write_llama,
};

const Architecture kQwen2 = {
    .name = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .block = {.qkv_bias = true},
    .num_key_value_heads = 32,
    .max_position_embeddings = 32768,
    .read = read_qwen2,
    .write = write_qwen2,
};

std::span<const Architecture* const> architectures() {
  static constexpr const Architecture* kAll[] = {&kLlama, &kQwen2};
  return kAll;
}

}  // namespace twell::io
