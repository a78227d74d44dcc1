// Architectures that the library does not know, as rows that a program adds: layer norms, biases,
// learned positions, heads that are rotated in part, parallel layers, norms behind. Their classes
// in `transformers` are what test_transformers.py compares them with.
#pragma once

#include <string>

#include "checkpoint/architecture.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::test {

using io::JsonObject;
using io::ModelConfig;
using io::NormForm;
using io::PositionForm;

inline const NormForm kLayerNorm = {.kind = NormForm::Kind::layer, .bias = true, .eps = 1e-5};

inline const io::Architecture kOpt = {
    .name = "opt",
    .class_name = "OPTForCausalLM",
    .block = {.norm = kLayerNorm,
              .positions = {.kind = PositionForm::Kind::learned, .offset = 2},
              .qkv_bias = true,
              .o_bias = true},
    .gated = false,
    .mlp_bias = true,
    .tie_word_embeddings = true,
    .hidden_act = io::HiddenAct::relu,
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
    .read =
        [](const JsonObject& json, ModelConfig& out) {
          const bool before = json.boolean("do_layer_norm_before", true);
          out.block.order = before ? io::NormOrder::pre : io::NormOrder::post;
          out.block.qkv_bias = out.block.o_bias = out.mlp_bias = json.boolean("enable_bias", true);
          out.block.norm.weight = out.block.norm.bias =
              json.boolean("layer_norm_elementwise_affine", true);
          if (json.integer("word_embed_proj_dim", 1, 1 << 20, out.hidden_size) != out.hidden_size) {
            io::fail_unsupported(json.file(), "word_embed_proj_dim is not supported");
          }
        },
    .write =
        [](const ModelConfig& config, nlohmann::ordered_json& json) {
          json["do_layer_norm_before"] = config.block.order == io::NormOrder::pre;
          json["enable_bias"] = config.mlp_bias;
          json["layer_norm_elementwise_affine"] = config.block.norm.weight;
        },
};

inline const io::Architecture kStableLm = {
    .name = "stablelm",
    .class_name = "StableLmForCausalLM",
    .block = {.norm = kLayerNorm, .positions = {.share = 0.25}},
    .max_position_embeddings = 4096,
    .keys = {.head_dim = "", .norm_eps = "layer_norm_eps"},
    .read =
        [](const JsonObject& json, ModelConfig& out) {
          out.block.qkv_bias = json.boolean("use_qkv_bias", false);
          if (json.boolean("use_parallel_residual", false)) {
            out.block.arrangement = io::Arrangement::parallel_one_norm;
          }
        },
    .write =
        [](const ModelConfig& config, nlohmann::ordered_json& json) {
          json["use_qkv_bias"] = config.block.qkv_bias;
          json["use_parallel_residual"] = config.block.arrangement != io::Arrangement::sequential;
        },
};

inline const io::Architecture kNemotron = {
    .name = "nemotron",
    .class_name = "NemotronForCausalLM",
    .block = {.norm = {.kind = NormForm::Kind::layer, .plus_one = true, .bias = true, .eps = 1e-5},
              .positions = {.share = 0.5}},
    .gated = false,
    .hidden_act = io::HiddenAct::relu_squared,
    .max_position_embeddings = 4096,
    .keys = {.norm_eps = "norm_eps"},
};

// Norms on both sides of a layer, RMS without a weight; no positions.
inline const io::Architecture kSandwich = {
    .name = "sandwich",
    .class_name = "SandwichForCausalLM",
    .block = {.norm = {.kind = NormForm::Kind::rms, .weight = false, .bias = true},
              .order = io::NormOrder::both,
              .positions = {.kind = PositionForm::Kind::none}},
    .tensors = {.attention_output_norm = "attention_output_norm.",
                .ffn_output_norm = "ffn_output_norm."},
};

// Layers side by side, each behind a norm of its own.
inline const io::Architecture kSideBySide = {
    .name = "side_by_side",
    .class_name = "SideBySideForCausalLM",
    .block = {.norm = {.kind = NormForm::Kind::rms},
              .arrangement = io::Arrangement::parallel,
              .positions = {.kind = PositionForm::Kind::learned}},
    .gated = false,
    .tensors = {.positions = "model.embed_positions."},
};

inline constexpr const io::Architecture* kOtherArchitectures[] = {
    &io::kLlama, &io::kQwen2, &kOpt, &kStableLm, &kNemotron, &kSandwich, &kSideBySide};

}  // namespace twell::test
