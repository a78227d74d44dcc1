// Choosing the next tokens of several sequences where their logits are.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/sampler.h"

namespace twell::lm {

// logits [B, V] f32, uniforms f64 [B] from [0, 1), on one device -> token ids, int64 [B]; -1 where
// a logit is NaN or the largest is infinite. Nothing is read back and no shape depends on a value.
//
// Greedy, with a temperature alone, and with top_k this picks what Sampler picks for the same draw
// (up to the rounding of sums). With top_p the kept tokens and their probabilities are the same,
// but they lie in another order, so that a draw may pick another of them.
at::Tensor sample_rows(const at::Tensor& logits, const SamplingOptions& options,
                       const at::Tensor& uniforms);

}  // namespace twell::lm
