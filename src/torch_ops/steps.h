// The steps of the layer one by one, for inspection and tests; twell_tensors.h says what the triple
// holds. Implemented here for CPU tensors and in cuda/torch/ for a GPU's.
#pragma once

#include <cstdint>
#include <string>

#include "torch_ops/twell_tensors.h"

namespace twell::torch_ops {

TwellTensors dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity);

// [M, cols] of `dtype`.
Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype);

// act(x Wᵀ) of x [M, D] and a packed W [H, D].
TwellTensors gemm_relu_twell(const Tensor& x, const Tensor& weight_packed,
                             const std::string& activation, double threshold, std::int64_t tile,
                             std::int64_t capacity);

// y [M, D] of x [M, D], the packed gate [M, H], up and down [H, D].
Tensor twell_gated_ffn(const Tensor& x, const Tensor& counts, const Tensor& slots,
                       const Tensor& overflow, const Tensor& up, const Tensor& down);

// y [M, D] of the packed hidden state [M, H] and down [H, D].
Tensor twell_spmm(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                  const Tensor& down);

}  // namespace twell::torch_ops
