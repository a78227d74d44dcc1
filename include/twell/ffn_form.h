// The form of a feed-forward layer: what it computes beside its three products.
//
//   gated       v = x Wgᵀ + bg, u = x Wuᵀ + bu, h = f(v) · fu(u)
//   non-gated   v = x Wuᵀ + bg, h = f(v)
//   both        y = s (w ⊙ h) Wd + bd
//
// Without a norm, s and w are 1. The norm is an RMSNorm of the hidden state (BitNet b1.58's
// ffn_sub_norm): s = 1 / √(Σ h² / H + ε) for each row, and w is its weight.
//
// Biases and w are f32; a bf16 layer widens its own exactly. Biases are added to f32 sums, before
// these are rounded or compared with a threshold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "twell/activation.h"

#pragma GCC visibility push(default)
namespace twell {

// The norm of the hidden state.
struct HiddenNorm {
  std::span<const float> weight;  // w [H]; empty: ones
  float epsilon = 1e-6F;          // ε > 0
};

// A form. The caller owns the vectors and keeps them while the form is used. An empty vector means
// that there is none.
struct FfnForm {
  ActivationSpec gate;                   // f, which makes the zeros
  Activation up = Activation::identity;  // fu, of a gated layer: relu makes it dReLU
  std::span<const float> gate_bias;      // bg [H]
  std::span<const float> up_bias;        // bu [H], of a gated layer
  std::span<const float> down_bias;      // bd, [columns of Wd]
  std::optional<HiddenNorm> norm;

  FfnForm() = default;
  // Of an activation alone, as most layers have.
  FfnForm(const ActivationSpec& activation)  // NOLINT(google-explicit-constructor)
      : gate(activation) {}
  FfnForm(Activation kind, float threshold = 0.0F)  // NOLINT(google-explicit-constructor)
      : gate{kind, threshold} {}
};

// An entry of a bias; 0 where there is none.
inline float bias_of(std::span<const float> bias, std::int64_t at) {
  return bias.empty() ? 0.0F : bias[static_cast<std::size_t>(at)];
}
// The norm's weight of a neuron.
inline float weight_of(const HiddenNorm& norm, std::int64_t neuron) {
  return norm.weight.empty() ? 1.0F : norm.weight[static_cast<std::size_t>(neuron)];
}

}  // namespace twell
#pragma GCC visibility pop
