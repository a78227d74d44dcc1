// The architectures that are known. A row says what is its own; all else is Llama's.
#include <algorithm>
#include <array>
#include <vector>

#include "checkpoint/architecture.h"
#include "checkpoint/config_names.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

constexpr NormSpec kRms5 = {.kind = NormSpec::Kind::rms, .eps = 1e-5};
constexpr NormSpec kLayerNorm = {.kind = NormSpec::Kind::layer, .bias = true, .eps = 1e-5};

// --- keys that several have ---

void read_attention_bias(const JsonObject& json, ModelConfig& out) {
  out.block.qkv_bias = out.block.o_bias = json.boolean("attention_bias", false);
}
void write_attention_bias(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.block.qkv_bias;
}

void read_biases(const JsonObject& json, ModelConfig& out) {
  read_attention_bias(json, out);
  out.mlp_bias = json.boolean("mlp_bias", false);
}
void write_biases(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_attention_bias(config, json);
  json["mlp_bias"] = config.mlp_bias;
}

// --- Qwen2, with biases of q, k and v, and Qwen3, with norms of heads ---

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

void read_qwen3(const JsonObject& json, ModelConfig& out) {
  read_attention_bias(json, out);
  read_qwen2(json, out);
}
void write_qwen3(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_attention_bias(config, json);
  write_qwen2(config, json);
}

// One as long as the context is none.
void refuse_window(const JsonObject& json, const char* key, const ModelConfig& config) {
  const std::int64_t window = json.integer(key, 1, kMaxPositions, 4096);
  if (window < config.max_position_embeddings) {
    fail_unsupported(json.file(),
                     "{} {} is less than max_position_embeddings {}: windows are not supported; "
                     "with max_position_embeddings {} there is none",
                     key, window, config.max_position_embeddings, window);
  }
}

// --- Mistral, and Bamboo, which is TurboSparse-Mistral ---

void read_mistral(const JsonObject& json, ModelConfig& out) {
  const char* key = "sliding_window";
  if (!json.json().contains(key) || json.has(key)) refuse_window(json, key, out);
}
void write_mistral(const ModelConfig& /*config*/, nlohmann::ordered_json& json) {
  json["sliding_window"] = nullptr;
}

// Both projections are activated.
void read_bamboo(const JsonObject& json, ModelConfig& out) {
  read_mistral(json, out);
  const std::optional<Activation> act = sparse_kind(out.hidden_act);
  if (!act || has_threshold(*act)) {
    fail_unsupported(json.file(),
                     "hidden_act {} is not supported for up, which has it too (supported: those of "
                     "{} without a threshold)",
                     in_quotes(json.string("hidden_act")), sparse_names());
  }
  out.block.up = *act;
}

// --- OPT ---

void read_opt(const JsonObject& json, ModelConfig& out) {
  const bool before = json.boolean("do_layer_norm_before", true);
  out.block.order = before ? NormOrder::pre : NormOrder::post;
  out.block.qkv_bias = out.block.o_bias = out.mlp_bias = json.boolean("enable_bias", true);
  out.block.norm.weight = out.block.norm.bias = json.boolean("layer_norm_elementwise_affine", true);
  const char* width = "word_embed_proj_dim";
  if (const auto is = json.integer(width, 1, kMaxHidden, out.hidden_size); is != out.hidden_size) {
    fail_unsupported(json.file(), "{} {} other than hidden_size {} is not supported", width, is,
                     out.hidden_size);
  }
  if (before && json.boolean("_remove_final_layer_norm", false)) {
    fail_unsupported(json.file(), "_remove_final_layer_norm is not supported");
  }
}
void write_opt(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["do_layer_norm_before"] = config.block.order == NormOrder::pre;
  json["enable_bias"] = config.mlp_bias;
  json["layer_norm_elementwise_affine"] = config.block.norm.weight;
  json["word_embed_proj_dim"] = config.hidden_size;
}

// --- MiniCPM, MiniCPM-S: scaled embeddings, layers and logits ---

void read_minicpm(const JsonObject& json, ModelConfig& out) {
  read_attention_bias(json, out);
  if (json.integer("num_experts", 0, kMaxIntermediate, 0) > 0) {
    fail_unsupported(json.file(), "experts (num_experts) are not supported");
  }
  if (json.has("sparse_config")) {
    fail_unsupported(json.file(), "sparse attention (sparse_config) is not supported");
  }
  const auto scale = [&](const char* key) {
    return json.number(key, kSmallestScale, kLargestScale, 1.0);
  };
  out.block.scales.embedding = scale("scale_emb");
  out.block.scales.depth = scale("scale_depth");
  out.block.scales.width = scale("dim_model_base");
}
void write_minicpm(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_attention_bias(config, json);
  json["scale_emb"] = config.block.scales.embedding;
  json["scale_depth"] = config.block.scales.depth;
  json["dim_model_base"] = config.block.scales.width;
}

// --- SmallThinker: experts, chosen by what comes into the block ---

// Of zeros and ones, one for each layer.
std::vector<bool> read_layout(const JsonObject& json, const char* key, std::int64_t layers,
                              bool fallback) {
  std::vector<bool> out(static_cast<std::size_t>(layers), fallback);
  if (!json.has(key)) return out;
  const Json::array_t& array = json.array(key);
  if (std::ssize(array) != layers) {
    fail_file(json.file(), "{} has {} entries, expected one for each of {} layers", key,
              array.size(), layers);
  }
  for (std::size_t l = 0; l < array.size(); ++l) {
    if (array[l] != 0 && array[l] != 1) fail_file(json.file(), "{} holds other than 0 and 1", key);
    out[l] = array[l] == 1;
  }
  return out;
}

std::int64_t read_unrotated(const JsonObject& json, const ModelConfig& config) {
  const char* key = "rope_layout";
  const std::vector<bool> rotated = read_layout(json, key, config.num_hidden_layers, true);
  if (std::ranges::find(rotated, false) == rotated.end()) return 0;
  const std::int64_t every =
      std::ranges::find(rotated.begin() + 1, rotated.end(), false) - rotated.begin();
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (rotated[static_cast<std::size_t>(l)] != (l % every != 0)) {
      fail_unsupported(json.file(),
                       "{} other than every n-th layer, from the first, is not supported", key);
    }
  }
  return every;
}

void read_smallthinker(const JsonObject& json, ModelConfig& out) {
  out.block.positions.unrotated_every = read_unrotated(json, out);
  const std::vector<bool> windows =
      read_layout(json, "sliding_window_layout", out.num_hidden_layers, false);
  if (std::ranges::find(windows, true) != windows.end())
    refuse_window(json, "sliding_window_size", out);
  const std::vector<bool> experts =
      read_layout(json, "moe_layer_layout", out.num_hidden_layers, true);
  for (const char* key : {"use_qk_norm", "moe_enable_secondary_experts"}) {
    if (json.boolean(key, false)) fail_unsupported(json.file(), "{} is not supported", key);
  }
  if (std::ranges::find(experts, false) != experts.end() ||
      json.integer("moe_shared_primary_experts", 0, kMaxExperts, 0) > 0) {
    fail_unsupported(json.file(),
                     "layers without experts (moe_layer_layout) or with shared ones "
                     "(moe_shared_primary_experts) are not supported");
  }
  ExpertSpec& spec = out.block.experts;
  spec.count = json.integer("moe_num_primary_experts", 1, kMaxExperts, spec.count);
  spec.active = json.integer("moe_num_active_primary_experts", 1, spec.count, spec.active);
  spec.softmax = json.boolean("moe_primary_router_apply_softmax", false);
  spec.early = json.boolean("moe_enable_early_router", true);
  if (!json.json().contains("eos_token_id") && out.vocab_size > 151645) {
    out.eos_token_ids = {151643, 151645};
  }
}
void write_smallthinker(const ModelConfig& config, nlohmann::ordered_json& json) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  std::vector<int> rotated(layers);
  for (std::size_t l = 0; l < layers; ++l)
    rotated[l] = config.rotates(static_cast<std::int64_t>(l)) ? 1 : 0;
  json["rope_layout"] = rotated;
  json["sliding_window_layout"] = std::vector<int>(layers, 0);
  json["moe_layer_layout"] = std::vector<int>(layers, 1);
  const ExpertSpec& spec = config.block.experts;
  json["moe_num_primary_experts"] = spec.count;
  json["moe_num_active_primary_experts"] = spec.active;
  json["moe_primary_router_apply_softmax"] = spec.softmax;
  json["moe_enable_early_router"] = spec.early;
}

// --- NanoChat: norms without weights, of the embedding and of heads too; logits that are capped
// ---

constexpr const char* kCap = "final_logit_softcapping";

void read_nanochat(const JsonObject& json, ModelConfig& out) {
  read_attention_bias(json, out);
  const bool none = json.json().contains(kCap) && !json.has(kCap);
  out.block.scales.logit_cap =
      none ? 0.0 : json.number(kCap, kSmallestScale, kLargestScale, out.block.scales.logit_cap);
}
void write_nanochat(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_attention_bias(config, json);
  const double cap = config.block.scales.logit_cap;
  json[kCap] = cap > 0 ? nlohmann::ordered_json(cap) : nlohmann::ordered_json(nullptr);
}

}  // namespace

// Llama 1 to 3, SmolLM2, ReluLLaMA, the paper's models.
const Architecture kLlama = {
    .name = "llama",
    .class_name = "LlamaForCausalLM",
    .bos_token_id = 1,
    .eos_token_id = 2,
    .read = read_biases,
    .write = write_biases,
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

namespace {

const Architecture kQwen3 = {
    .name = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .block = {.head_norms = true},
    .num_key_value_heads = 32,
    .head_dim = 128,
    .max_position_embeddings = 32768,
    .read = read_qwen3,
    .write = write_qwen3,
};

const Architecture kMistral = {
    .name = "mistral",
    .class_name = "MistralForCausalLM",
    .num_key_value_heads = 8,
    .max_position_embeddings = 131072,
    .bos_token_id = 1,
    .eos_token_id = 2,
    .read = read_mistral,
    .write = write_mistral,
};

const Architecture kBamboo = {
    .name = "bamboo",
    .class_name = "BambooForCausalLM",
    .block = {.up = Activation::relu},
    .hidden_act = HiddenAct::relu,
    .num_key_value_heads = 8,
    .max_position_embeddings = 131072,
    .bos_token_id = 1,
    .eos_token_id = 2,
    .read = read_bamboo,
    .write = write_mistral,
};

// ProSparse-Llama-2: Llama with a FATReLU, some of whose files say so.
const Architecture kSparseLlama = {
    .name = "sparsellama",
    .class_name = "SparseLlamaForCausalLM",
    .bos_token_id = 1,
    .eos_token_id = 2,
    .read = read_biases,
    .write = write_biases,
};

const Architecture kMiniCpm = {
    .name = "minicpm",
    .class_name = "MiniCPMForCausalLM",
    .block = {.scales = {.depth = 1.0, .width = 1.0}},
    .tie_word_embeddings = true,
    .bos_token_id = 1,
    .eos_token_id = 2,
    .read = read_minicpm,
    .write = write_minicpm,
};

const Architecture kArcee = {
    .name = "arcee",
    .class_name = "ArceeForCausalLM",
    .block = {.norm = kRms5},
    .gated = false,
    .hidden_act = HiddenAct::relu_squared,
    .max_position_embeddings = 4096,
    .bos_token_id = 128000,
    .eos_token_id = 128001,
    .read = read_biases,
    .write = write_biases,
};

// Nemotron-4, Minitron.
const Architecture kNemotron = {
    .name = "nemotron",
    .class_name = "NemotronForCausalLM",
    .block = {.norm = {.kind = NormSpec::Kind::layer, .plus_one = true, .bias = true, .eps = 1e-5},
              .positions = {.share = 0.5}},
    .gated = false,
    .hidden_act = HiddenAct::relu_squared,
    .max_position_embeddings = 4096,
    .bos_token_id = 2,
    .eos_token_id = 3,
    .keys = {.norm_eps = "norm_eps"},
    .read = read_biases,
    .write = write_biases,
};

const Architecture kOpt = {
    .name = "opt",
    .class_name = "OPTForCausalLM",
    .block = {.norm = kLayerNorm,
              .positions = {.kind = PositionSpec::Kind::learned, .offset = 2},
              .qkv_bias = true,
              .o_bias = true},
    .gated = false,
    .mlp_bias = true,
    .tie_word_embeddings = true,
    .hidden_act = HiddenAct::relu,
    .bos_token_id = 2,
    .eos_token_id = 2,
    .keys = {.intermediate_size = "ffn_dim",
             .num_key_value_heads = "",
             .head_dim = "",
             .norm_eps = "",
             .hidden_act = "activation_function"},
    .tensors = {.embedding = "model.decoder.embed_tokens.",
                .positions = "model.decoder.embed_positions.",
                .layers = "model.decoder.layers.",
                .attention_norm = "self_attn_layer_norm.",
                .o = "self_attn.out_proj.",
                .ffn_norm = "final_layer_norm.",
                .up = "fc1.",
                .down = "fc2.",
                .final_norm = "model.decoder.final_layer_norm."},
    .read = read_opt,
    .write = write_opt,
};

const Architecture kBitNet = {
    .name = "bitnet",
    .class_name = "BitNetForCausalLM",
    .block = {.norm = kRms5, .positions = {.theta = 500000.0}, .inner_norms = true},
    .hidden_act = HiddenAct::relu_squared,
    .num_key_value_heads = 5,
    .bos_token_id = 128000,
    .eos_token_id = 128001,
    .read = read_attention_bias,
    .write = write_attention_bias,
};

const Architecture kNanoChat = {
    .name = "nanochat",
    .class_name = "NanoChatForCausalLM",
    .block = {.norm = {.kind = NormSpec::Kind::rms, .weight = false},
              .positions = {.reversed = true},
              .head_norms = true,
              .embedding_norm = true,
              .scales = {.logit_cap = 15.0}},
    .gated = false,
    .hidden_act = HiddenAct::relu_squared,
    .bos_token_id = 0,
    .eos_token_id = 1,
    .tensors = {.up = "mlp.fc1.", .down = "mlp.fc2."},
    .read = read_nanochat,
    .write = write_nanochat,
};

const Architecture kSmallThinker = {
    .name = "smallthinker",
    .class_name = "SmallThinkerForCausalLM",
    .block = {.positions = {.theta = 1e6}, .experts = {.count = 32, .active = 4, .early = true}},
    .tie_word_embeddings = true,
    .hidden_act = HiddenAct::relu,
    .num_key_value_heads = 2,
    .head_dim = 128,
    .max_position_embeddings = 131072,
    .bos_token_id = 151643,
    .keys = {.intermediate_size = "moe_ffn_hidden_size"},
    .tensors = {.router = "block_sparse_moe.primary_router.",
                .experts = "block_sparse_moe.experts.",
                .gate = "gate.",
                .up = "up.",
                .down = "down."},
    .read = read_smallthinker,
    .write = write_smallthinker,
};

}  // namespace

std::span<const Architecture* const> architectures() {
  static constexpr std::array kAll = {
      &kLlama, &kQwen2,  &kQwen3,       &kMistral, &kArcee,  &kNemotron,    &kNanoChat,
      &kOpt,   &kBitNet, &kSparseLlama, &kMiniCpm, &kBamboo, &kSmallThinker};
  return kAll;
}

}  // namespace twell::io
