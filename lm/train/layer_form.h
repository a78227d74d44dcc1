// A layer's weights and its form (twell/ffn_form.h) as the operators of training take them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <cstdint>
#include <optional>

#include "decoder/feed_forward.h"
#include "decoder/weights.h"

namespace twell::lm {

using OptionalTensor = std::optional<at::Tensor>;

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
};

// The signature of an operator whose last arguments are a form (torch_ops/form_arguments.h).
template <class Result, class... A>
using Formed = Result(A..., c10::string_view, double, std::int64_t, c10::string_view,
                      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                      const OptionalTensor&, std::optional<double>);

struct LayerForm {
  ActivationSpec gate;
  Activation up = Activation::identity;
  std::optional<double> norm_eps = {};
  std::int64_t hot = 0;                          // of the first neurons, on a GPU
  OptionalTensor gate_bias, up_bias, down_bias;  // "gate": of the first projection
  OptionalTensor norm_weight;

  // op(a..., this form).
  template <class Operator, class... A>
  auto call(const Operator& op, const A&... a) const {
    return op.call(a..., name_of(gate.kind), static_cast<double>(gate.threshold), hot, name_of(up),
                   gate_bias, up_bias, down_bias, norm_weight, norm_eps);
  }
};

}  // namespace twell::lm
