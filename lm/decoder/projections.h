// A layer's weights in the order in which libtwell and the operators take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "decoder/feed_forward.h"

namespace twell::lm {

// The first projection is the gate, or up in a layer without a gate, which has no second one.
// Undefined where there is none.
struct Projections : FormVectors<at::Tensor> {
  at::Tensor first, up, down;

  explicit Projections(const FfnParameters& p)
      : FormVectors(p), first(p.gated() ? p.gate : p.up), down(p.down) {
    if (p.gated()) {
      up = p.up;
    } else {
      gate_bias = p.up_bias;
      up_bias = at::Tensor();
    }
  }

  // In the order of OperatorWeights (decoder/sparse_operators.h), with this down.
  std::vector<at::Tensor> with_down(const at::Tensor& other) const {
    std::vector<at::Tensor> out = {first, up, other};
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) out.push_back((*this)[i]);
    return out;
  }
};

}  // namespace twell::lm
