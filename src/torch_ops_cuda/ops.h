// The operators' CUDA implementations. Schemas: torch_ops/library.cc.
#pragma once

#include <tuple>

#include "torch_ops_cuda/tensors.h"

namespace twell::torch_ops::on_cuda {

Tensor pack_weight(const Tensor& weight);
Tensor unpack_weight(const Tensor& packed, std::int64_t rows, std::int64_t cols);

Tensor gated_ffn(const Tensor& x, const Tensor& gate_packed, const Tensor& up, const Tensor& down,
                 const std::string& activation, double threshold);
std::tuple<Tensor, Tensor, Tensor> gated_ffn_stats(const Tensor& x, const Tensor& gate_packed,
                                                   const Tensor& up, const Tensor& down,
                                                   const std::string& activation, double threshold);
Tensor ffn(const Tensor& x, const Tensor& up_packed, const Tensor& down,
           const std::string& activation, double threshold);
std::tuple<Tensor, Tensor, Tensor> ffn_stats(const Tensor& x, const Tensor& up_packed,
                                             const Tensor& down, const std::string& activation,
                                             double threshold);

}  // namespace twell::torch_ops::on_cuda
