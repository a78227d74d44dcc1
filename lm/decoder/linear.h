// A linear layer of a decoder block: PyTorch's on the weight as it is stored, or twell's on a
// packed copy that replaces it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "decoder/weights.h"
#include "twell/ggml.h"

namespace twell::lm {

// A weight in ggml's blocks.
struct GgmlWeight {
  GgmlMatrix matrix;
  GgmlInputs inputs;
};
struct GgmlPacking {
  GgmlOrder order = GgmlOrder::outputs;
  GgmlInputs inputs = GgmlInputs::rounded;
};

struct Linear {
  Parameter weight;                     // [out, in], or codes of it; given up once packed
  Parameter bias;                       // [out]
  at::Tensor packed = {};               // as torch.ops.twell.pack_weight makes it
  WeightView packed_view = {};          // of it, on a CPU
  std::optional<GgmlWeight> ggml = {};  // once packed

  // Differentiable unless packed.
  at::Tensor operator()(const at::Tensor& x) const;
  // y in f32, rounded no further if x is. Inference only, on a CPU, in bf16 or f32.
  at::Tensor sums(const at::Tensor& x) const;
  // From now on y comes from torch.ops.twell.linear, which reads a weight at the bandwidth of
  // memory where tokens are few (1.6 times PyTorch's speed at one token on two cores of a Zen 5)
  // and is as fast where they are many; and of blocks from ggml_matmul(). bf16, codes and blocks on
  // the CPU only; others stay as they are. Inference only. `how`: blocks are. Throws twell::Error
  // naming file and tensor where a scale of blocks is not finite.
  void pack(ParameterSource& source, GgmlPacking how = {});
  bool has_codes() const {
    return weight.tensor.defined() && !weight.format && is_of_codes(weight.tensor);
  }
  std::int64_t own_bytes() const;  // of what is packed
};

// As at::linear, but for bf16 matrices where PyTorch has no GEMM for them (without AVX-512). It
// takes one dot product after the other there: 10 GFLOP/s on two cores of a Zen 3, whose f32 GEMMs
// reach 70. From 64 rows on f32 numbers are made of x and W instead, in every call: at 512 rows
// 0.23 s in place of 1.15 (D = 2048, H = 5632). Differentiable.
at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
// How. f32 numbers of at most 64 MB of the weight are in memory at a time; y is rounded once.
at::Tensor linear_in_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// x as torch.ops.twell.round_inputs rounds it: inputs of a model whose activations are in int8.
at::Tensor rounded_inputs(const at::Tensor& x);

// x Wᵀ for a weight that stays as it is stored: twell's for up to eight rows, at the bandwidth of
// memory, PyTorch's for more.
at::Tensor linear_as_stored(const at::Tensor& x, const at::Tensor& weight);
// As Linear::sums().
at::Tensor sums_as_stored(const at::Tensor& x, const at::Tensor& weight);

// A weight [rows, cols], or codes of it, as torch.ops.twell.pack_weight of its device makes it; on
// the CPU in huge pages where the system gives them.
at::Tensor packed_weight(const at::Tensor& weight);
// Back again, new and contiguous.
at::Tensor unpacked_weight(const at::Tensor& packed);
// Whether packing [rows, cols] of 16 bits adds nothing: rows of panels of 16, columns of 32.
bool packs_without_padding(std::int64_t rows, std::int64_t cols);

}  // namespace twell::lm
