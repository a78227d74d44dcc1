// Weights in ggml's blocks (twell/ggml.h), and layers of them. On a CPU, for inference.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "decoder/decoder.h"
#include "twell/ggml.h"

namespace twell::lm {

// A weight's rows of blocks, uint8 [rows, bytes of a row].
GgmlView ggml_view(GgmlFormat format, const at::Tensor& blocks);

// Of a table in blocks the rows `ids`, int64 [...] -> [..., D] of `dtype`.
at::Tensor ggml_look_up(const Parameter& table, const at::Tensor& ids, at::ScalarType dtype);

// x Wᵀ + bias as ggml_matmul() computes it: x [..., inputs] of any type -> [..., outputs] of it.
// `bias`: of any type, or undefined.
at::Tensor ggml_linear(const at::Tensor& x, const GgmlWeight& weight, const at::Tensor& bias);

// A feed-forward layer of linear layers at least one of which is in blocks. They are packed, and
// given up by `from`. h is f32 throughout. Where the activation yields zeros and `path` is not
// dense, down is in GgmlOrder::inputs; under FfnPath::automatic it is packed in the other order,
// for good, once so much fires that this is faster.
std::unique_ptr<FeedForward> make_ggml_feed_forward(FfnTensors& from,
                                                    const ActivationChoice& activation,
                                                    FfnPath path, GgmlInputs inputs,
                                                    ParameterSource& source);

}  // namespace twell::lm
