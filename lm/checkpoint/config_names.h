// Ranges and spellings that reading and writing config.json share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "files/json_reader.h"

namespace twell::io {

// Generous for any model that exists, small enough that products of a few fit into 63 bits.
inline constexpr std::int64_t kMaxHidden = 1 << 20;
inline constexpr std::int64_t kMaxIntermediate = 1 << 24;
inline constexpr std::int64_t kMaxLayers = 1 << 12;
inline constexpr std::int64_t kMaxHeads = 1 << 16;
inline constexpr std::int64_t kMaxExperts = 1 << 16;  // of all layers together
inline constexpr std::int64_t kMaxVocabulary = 1 << 28;
inline constexpr std::int64_t kMaxPositions = 1 << 30;
inline constexpr double kMaxRopeTheta = 1e15;
inline constexpr double kMaxRopeFactor = 1e6;
inline constexpr double kSmallestScale = 1e-6;
inline constexpr double kLargestScale = 1e6;

// The threshold of a FATReLU, as ProSparse's files have it, and as twell once wrote it.
inline constexpr const char* kFatReluThreshold = "hidden_act_param";
inline constexpr const char* kOldFatReluThreshold = "twell_fat_relu_threshold";
// ReLU of up and of the gate, which has FATReLU where there is a threshold.
inline constexpr std::string_view kDRelu = "drelu";

// A path within a directory, and not out of it by ".." or from the root.
bool stays_within(std::string_view path);

// What from_json() reads, before it is checked as a whole.
ModelConfig read_config(const JsonObject& json, std::span<const Architecture* const> known);
// What to_json() writes but for the keys that change nothing here.
nlohmann::ordered_json own_keys(const ModelConfig& config);
// The first problem, or an empty string: "num_key_value_heads is 3, ...".
std::string problem_of(const ModelConfig& config);

}  // namespace twell::io
