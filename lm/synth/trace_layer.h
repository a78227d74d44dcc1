// A layer that fires exactly as a recorded trace says.
//
// Token t is the t-th unit vector, and the gate of neuron n has at t a positive number where n
// fired for the token and a negative one where it did not: the product is that number, without
// rounding, so gate GEMM, packing and the sparse stages do the work that they did for the real
// text, on real numbers of active neurons, with their real overlap from token to token. No kernel
// looks at values before the activation, so that inputs of one non-zero cost what any others do. As
// many tokens as the layer is wide can be told apart like this; larger batches repeat them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "files/activity_trace.h"
#include "synth/synthetic.h"

namespace twell::lm {

// `shape.activity` is ignored. Throws where there are more rows than shape.width, or neurons that
// shape.neurons does not have.
SyntheticLayer traced_layer(const SyntheticShape& shape, const io::ActivityRows& rows,
                            std::uint64_t seed);
// Inputs [tokens, D] of tokens 0 … recorded - 1, again and again.
at::Tensor traced_inputs(const SyntheticShape& shape, std::int64_t recorded, std::int64_t tokens);

}  // namespace twell::lm
