// The key quantization_config of config.json: which weights of a model are stored as integers and
// scales, in the layouts of the package compressed-tensors. Weights alone: docs/quantised.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

class JsonObject;

// How a weight [rows, columns] is stored: integer codes, symmetric about zero, and scales.
struct WeightScheme {
  int bits = 8;            // 8 or 4
  std::int64_t group = 0;  // columns that share a scale: 32, 64, 96 or 128; 0: all of a row
  bool packed = true;      // codes in words of 32 bits, else one in each byte (8 bits only)

  bool operator==(const WeightScheme&) const = default;
};

std::string text_of(const WeightScheme& scheme);  // "int4, groups of 32"

struct QuantizationConfig {
  struct Group {
    // Names of modules, "re:" and a regular expression for the begin of a name, or names of classes
    // (Linear, Embedding).
    std::vector<std::string> targets;
    WeightScheme scheme;

    bool operator==(const Group&) const = default;
  };
  std::vector<Group> groups;
  std::vector<std::string> ignore;  // as targets

  bool operator==(const QuantizationConfig&) const = default;

  // `json` is the value of quantization_config. Throws Error naming file and key: environment where
  // a value is missing or wrong, unsupported where it asks for what is not read here: other
  // layouts, codes with a zero point, groups in another order, quantised activations.
  static QuantizationConfig from_json(const JsonObject& json);
  nlohmann::ordered_json to_json() const;

  // Of a module ("model.layers.0.mlp.up_proj") of a class; none where it is not quantised. `file`
  // is for messages: throws Error (environment) where a regular expression takes too many steps.
  std::optional<WeightScheme> scheme_of(const std::string& module, std::string_view module_class,
                                        const std::string& file) const;
};

}  // namespace twell::io
