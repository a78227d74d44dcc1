// Architectures that the library does not know, as rows that a program adds, for blocks that
// none of its own has: parallel layers, norms behind, no positions.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/architecture.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::test {

using io::JsonObject;
using io::ModelConfig;
using io::NormSpec;
using io::PositionSpec;

inline const NormSpec kLayerNorm = {.kind = NormSpec::Kind::layer, .bias = true, .eps = 1e-5};

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

// Norms on both sides of a layer, RMS without a weight; no positions.
inline const io::Architecture kSandwich = {
    .name = "sandwich",
    .class_name = "SandwichForCausalLM",
    .block = {.norm = {.kind = NormSpec::Kind::rms, .weight = false, .bias = true},
              .order = io::NormOrder::both,
              .positions = {.kind = PositionSpec::Kind::none}},
    .tensors = {.attention_output_norm = "attention_output_norm.",
                .ffn_output_norm = "ffn_output_norm."},
};

// Layers side by side, each behind a norm of its own.
inline const io::Architecture kSideBySide = {
    .name = "side_by_side",
    .class_name = "SideBySideForCausalLM",
    .block = {.norm = {.kind = NormSpec::Kind::rms},
              .arrangement = io::Arrangement::parallel,
              .positions = {.kind = PositionSpec::Kind::learned}},
    .gated = false,
    .tensors = {.positions = "model.embed_positions."},
};

inline const io::Architecture& architecture(std::string_view name) {
  for (const io::Architecture* one : io::architectures()) {
    if (name == one->name) return *one;
  }
  throw std::out_of_range(std::string(name));
}

// The library's and these.
inline std::span<const io::Architecture* const> all_architectures() {
  static const std::vector<const io::Architecture*> all = [] {
    const auto known = io::architectures();
    std::vector<const io::Architecture*> out(known.begin(), known.end());
    out.insert(out.end(), {&kStableLm, &kSandwich, &kSideBySide});
    return out;
  }();
  return all;
}

}  // namespace twell::test
