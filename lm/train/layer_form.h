// A layer's weights as the operators of training take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "decoder/feed_forward.h"

namespace twell::lm {

// The first projection is the gate, or up in a layer without a gate, which has no second one.
// Undefined where there is none.
struct Projections {
  at::Tensor first, up, down;
  at::Tensor first_bias, up_bias, down_bias, norm_weight;

  explicit Projections(const FfnParameters& p)
      : down(p.down), down_bias(p.down_bias), norm_weight(p.norm_weight) {
    if (p.gated()) {
      first = p.gate, first_bias = p.gate_bias;
      up = p.up, up_bias = p.up_bias;
    } else {
      first = p.up, first_bias = p.up_bias;
    }
  }

  // In the order of OperatorWeights (decoder/sparse_operators.h), with this down.
  std::vector<at::Tensor> with_down(const at::Tensor& other) const {
    return {first, up, other, first_bias, up_bias, down_bias, norm_weight};
  }
};

}  // namespace twell::lm
