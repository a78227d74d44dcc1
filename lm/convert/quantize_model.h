// twell quantize: a model's linear layers as integers and scales, in the layout of
// compressed-tensors (docs/quantised.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/quantize.h"

namespace twell::lm {

struct QuantizeOptions {
  int bits = 8;            // of attention, gate and up: 8 or 4
  std::int64_t group = 0;  // inputs that share one of their scales; 0: all
  // Of the head: 8, 4 in groups as the others, or in ones of 32, or 0, which leaves it as it is.
  // One that is tied to the embedding becomes a tensor of its own where it is quantised; the
  // embedding stays.
  int head_bits = 8;
  bool allow_unused = false;  // leave out tensors that config.json has no use for
  std::function<void(std::int64_t done, std::int64_t total, const std::string& tensor)>
      on_progress = {};
};

// By scheme, in words ("int8, a scale for each row").
struct QuantizedPart {
  std::int64_t tensors = 0, weights = 0;
  io::RoundingError error;
};
struct QuantizedModel {
  io::ModelConfig config;  // of the new model
  std::map<std::string, QuantizedPart> parts;
  std::int64_t kept = 0;                            // tensors that are as they were
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of tensors
};

// Writes the weights of the model in `from` to the directory `to`, without its config.json, tensor
// by tensor: in memory are one tensor and its codes. Down has 8 bits and one scale for each of its
// outputs, whatever the options, so that skipped neurons cost neither codes nor scales. The same
// bytes whatever the number of threads. Throws twell::Error naming file and tensor.
QuantizedModel quantize_model(const std::filesystem::path& from, const std::filesystem::path& to,
                              const QuantizeOptions& options);

}  // namespace twell::lm
