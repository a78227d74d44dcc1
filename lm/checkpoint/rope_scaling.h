// What the scalings of rotary embeddings compute: for the engine, and for files that store results.
#pragma once

#include <cmath>
#include <numbers>

#include "checkpoint/block_spec.h"

namespace twell::io {

// Of Llama 3: slow frequencies are divided by the factor, fast ones kept, those between blended.
inline double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const double turns = context * frequency / (2.0 * std::numbers::pi);  // within the old context
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double blend =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// Of yarn: what queries and keys are multiplied by, `times` that of `transformers`' mscale.
inline double yarn_attention_factor(double factor, double times = 1.0) {
  return factor <= 1.0 ? 1.0 : 0.1 * times * std::log(factor) + 1.0;
}

}  // namespace twell::io
