// PyTorch's dense feed-forward layer in every variant a user could run it, to take the fastest as
// the baseline.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/feed_forward.h"
#include "synth/synthetic.h"

namespace twell::lm {

enum class DenseVariant : std::uint8_t {
  linear,         // at::linear on plain weights
  joined,         // gate and up as one GEMM
  packed,         // oneDNN-ordered weights, activation fused: what torch.compile emits
  packed_product  // the same, and the product with gate fused into up
};
const char* name_of(DenseVariant variant);

class DenseFfn {
 public:
  // Weights are converted here, for batches of `tokens`. Throws where PyTorch does not offer the
  // variant for these types on this machine.
  DenseFfn(DenseVariant variant, const SyntheticLayer& layer, const ActivationChoice& activation,
           std::int64_t tokens);
  at::Tensor operator()(const at::Tensor& x) const;  // [M, D] -> [M, D]

 private:
  DenseVariant variant_;
  ActivationChoice activation_;
  at::Tensor gate_, up_, down_;
  FormVectors<at::Tensor> vectors_;
};

// The variants that this machine runs for this layer.
std::vector<DenseVariant> available_variants(const SyntheticLayer& layer,
                                             const ActivationChoice& activation,
                                             std::int64_t tokens);

}  // namespace twell::lm
