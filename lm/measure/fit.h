// How much of a model fits into the memory that there is.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/config.h"
#include "measure/model_compare.h"

namespace twell::lm {

// Bytes, estimated from shapes: of what there is once, and of what every layer has.
struct MemoryNeed {
  double fixed = 0, per_layer = 0;
};

// Of compare_speed() and compare_layers(): `copies` models in memory, `caches` of keys and values
// beside one another, numbers of `element` bytes.
MemoryNeed inference_need(const io::ModelConfig& config, const CompareOptions& options,
                          double copies, double caches, double element);
// Of compare_steps() with passes of one window: masters, moments and gradients of both optimizers'
// sides, and what the eager side keeps between forward and backward.
MemoryNeed training_need(const io::ModelConfig& config, std::int64_t context, bool recompute);

// How many of the model's layers fit into nine tenths of `free_bytes` (0: not known, all do).
// Throws Error (out_of_memory) naming `device` where one does not.
std::int64_t layers_that_fit(const MemoryNeed& need, std::int64_t layers, std::int64_t free_bytes,
                             const std::string& device);

}  // namespace twell::lm
