// An architecture: what its config.json and its tensors are called, and what its blocks compute, of
// what the engine can. The table of them is architectures.cc; how to add one:
// docs/adding-a-model.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/block_spec.h"
#include "checkpoint/config.h"

namespace twell::io {

class JsonObject;

// Keys of config.json. Empty: there is none, and the value is the architecture's.
struct ConfigKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  const char* num_hidden_layers = "num_hidden_layers";
  const char* num_attention_heads = "num_attention_heads";
  const char* num_key_value_heads = "num_key_value_heads";
  const char* head_dim = "head_dim";
  const char* max_position_embeddings = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
  const char* hidden_act = "hidden_act";
};

// What tensors are called: `layers`, the layer's number, a dot, and the name within the layer;
// "weight" or "bias" is put behind. Empty: there is no such tensor.
struct TensorNames {
  const char* embedding = "model.embed_tokens.";
  const char* embedding_norm = "";
  const char* positions = "";  // learned ones
  const char* layers = "model.layers.";
  const char* attention_norm = "input_layernorm.";
  const char* q = "self_attn.q_proj.";
  const char* k = "self_attn.k_proj.";
  const char* v = "self_attn.v_proj.";
  const char* q_norm = "self_attn.q_norm.";
  const char* k_norm = "self_attn.k_norm.";
  const char* attention_inner_norm = "self_attn.attn_sub_norm.";
  const char* o = "self_attn.o_proj.";
  const char* attention_output_norm = "";  // the second, where norms are before and behind
  const char* ffn_norm = "post_attention_layernorm.";
  // Where the block has experts, which are numbered like layers; the three projections and the norm
  // are then named within an expert.
  const char* router = "";
  const char* experts = "";
  const char* gate = "mlp.gate_proj.";
  const char* up = "mlp.up_proj.";
  const char* ffn_inner_norm = "mlp.ffn_sub_norm.";
  const char* down = "mlp.down_proj.";
  const char* ffn_output_norm = "";
  const char* final_norm = "model.norm.";
  const char* head = "lm_head.";
};

struct Architecture {
  const char* name;        // model_type
  const char* class_name;  // in `architectures`
  BlockSpec block = {};    // where config.json does not say otherwise, as all that follows
  bool gated = true;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  HiddenAct hidden_act = HiddenAct::silu;
  std::int64_t num_key_value_heads = 0;  // 0: as many as queries have
  std::int64_t head_dim = 0;             // 0: D / heads
  std::int64_t max_position_embeddings = 2048;
  // null says that there are none, and so does a vocabulary that does not hold them.
  std::optional<std::int32_t> bos_token_id = {}, eos_token_id = {};
  ConfigKeys keys = {};
  TensorNames tensors = {};
  // What config.json has besides: biases, say, or computations that are not there, which have to be
  // errors. Called when all else has been read, or written.
  void (*read)(const JsonObject&, ModelConfig&) = nullptr;
  void (*write)(const ModelConfig&, nlohmann::ordered_json&) = nullptr;
};

extern const Architecture kQwen2;  // kLlama: config.h; the others are in architectures()

}  // namespace twell::io
