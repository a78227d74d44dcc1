// The operators' CUDA implementations. Schemas: torch_ops/library.cc.
#pragma once

#include <optional>
#include <tuple>

#include "torch_ops_cuda/tensors.h"

namespace twell::torch_ops::on_cuda {

Tensor pack_weight(const Tensor& weight);
Tensor unpack_weight(const Tensor& packed, std::int64_t rows, std::int64_t cols);

// As torch_ops/ffn_ops.h; there are no screens on a GPU.
Tensor ffn(const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up, const Tensor& down,
           const std::optional<Tensor>& screen, const std::string& activation, double threshold);
std::tuple<Tensor, Tensor, Tensor, Tensor> ffn_stats(
    const Tensor& x, const Tensor& gate, const std::optional<Tensor>& up, const Tensor& down,
    const std::optional<Tensor>& screen, const std::string& activation, double threshold);

using TwellTuple = std::tuple<Tensor, Tensor, Tensor>;  // counts, slots, overflow

TwellTuple dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity);
Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype);
TwellTuple gemm_relu_twell(const Tensor& x, const Tensor& weight_packed, std::int64_t rows,
                           const std::string& activation, double threshold, std::int64_t tile,
                           std::int64_t capacity);
Tensor twell_gated_ffn(const Tensor& x, const Tensor& counts, const Tensor& slots,
                       const Tensor& overflow, const Tensor& up, const Tensor& down);
Tensor twell_spmm(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                  const Tensor& down);

}  // namespace twell::torch_ops::on_cuda
