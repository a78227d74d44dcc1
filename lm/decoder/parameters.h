// The parameters of a model: names, shapes, kinds, and other layouts that files may have.
#pragma once

#include "decoder/decoder.h"

namespace twell::lm {

// Without tensors, of the model that the configuration describes, as its architecture names them.
DecoderWeights weights_of(const io::ModelConfig& config);

// Calls f with every parameter that the model has, in checkpoint order. Weights: const or not.
template <class Weights, class F>
void for_each_parameter(Weights& weights, const F& f) {
  const auto visit = [&f](auto&... parameters) {
    ((parameters.name.empty() ? void() : f(parameters)), ...);
  };
  const auto visit_linears = [&](auto&... pairs) { (visit(pairs.weight, pairs.bias), ...); };
  visit(weights.embedding, weights.positions);
  visit_linears(weights.embedding_norm);
  for (auto& block : weights.blocks) {
    auto& [q, k, v, o, q_norm, k_norm, inner_norm, rotated, rounds_inputs] = block.attention;
    visit_linears(block.attention_norms.before, q, k, v, q_norm, k_norm, inner_norm, o,
                  block.attention_norms.after, block.attention_norms.sum);
    visit_linears(block.ffn_norms.before, block.router);
    for (auto& ffn : block.ffn_from) visit_linears(ffn.gate, ffn.up, ffn.inner_norm, ffn.down);
    visit_linears(block.ffn_norms.after, block.ffn_norms.sum);
  }
  visit_linears(weights.final_norm);
  visit_linears(weights.head);
}

}  // namespace twell::lm
