// The form of a feed-forward layer: what it computes besides its three products.
//
//   gated       v = x Wgᵀ + bg, u = x Wuᵀ + bu, h = f(v) · fu(u)
//   non-gated   v = x Wuᵀ + bg, h = f(v)
//   both        y = s (w ⊙ h) Wd + bd
//
// Without a norm, s and w are 1. The norm is an RMSNorm of the hidden state (BitNet b1.58's
// ffn_sub_norm): s = 1 / √(Σ h² / H + ε) for each row, and w is its weight.
//
// docs/adding-a-form.md shows how to add to it.
//
// Biases and w are f32; those of a bf16 layer are widened, which is exact. Biases are added to f32
// sums before these are rounded or compared with a threshold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "twell/activation.h"

#pragma GCC visibility push(default)
namespace twell {

// The vectors that a form may have, and their properties.
struct FormVector {
  const char* name;         // as operators, errors and Python's twell.form call it
  bool of_columns = false;  // an entry for each column of Wd, not for each neuron
  bool of_up = false;       // only in a gated layer

  constexpr std::int64_t entries(std::int64_t neurons, std::int64_t columns) const {
    return of_columns ? columns : neurons;
  }
};
inline constexpr std::array<FormVector, 4> kFormVectors = {
    {{"gate_bias"}, {"up_bias", false, true}, {"down_bias", true}, {"norm_weight"}}};

// A value for each of these vectors: its entries, a tensor, a name. In loops, v[i] belongs to
// kFormVectors[i].
template <class T>
struct FormVectors {
  T gate_bias = {};    // bg [H]
  T up_bias = {};      // bu [H]
  T down_bias = {};    // bd [columns of Wd]
  T norm_weight = {};  // w [H]; none: ones

  T& operator[](std::size_t i) {
    using Member = T FormVectors::*;
    constexpr std::array<Member, kFormVectors.size()> kMembers = {
        &FormVectors::gate_bias, &FormVectors::up_bias, &FormVectors::down_bias,
        &FormVectors::norm_weight};
    return this->*kMembers[i];
  }
  const T& operator[](std::size_t i) const { return const_cast<FormVectors&>(*this)[i]; }
};

// A form. The caller owns the vectors and keeps them while the form is used. An empty vector means
// that there is none.
struct FfnForm : FormVectors<std::span<const float>> {
  ActivationSpec gate;                   // f, which makes the zeros
  Activation up = Activation::identity;  // fu, of a gated layer: relu makes it dReLU
  std::optional<float> norm_epsilon;     // ε > 0 of the norm; none: there is no norm

  FfnForm() = default;
  // Only an activation, as in most layers.
  FfnForm(const ActivationSpec& activation)  // NOLINT(google-explicit-constructor)
      : gate(activation) {}
  FfnForm(Activation kind, float threshold = 0.0F)  // NOLINT(google-explicit-constructor)
      : gate{kind, threshold} {}
};

// An entry of a bias; 0 if there is none.
inline float bias_of(std::span<const float> bias, std::int64_t at) {
  return bias.empty() ? 0.0F : bias[static_cast<std::size_t>(at)];
}
// The factor w of a neuron's h on its way to down, besides s.
inline float factor_of(const FfnForm& form, std::int64_t neuron) {
  return form.norm_weight.empty() ? 1.0F : form.norm_weight[static_cast<std::size_t>(neuron)];
}
// Whether down multiplies anything but h.
inline bool scales_hidden(const FfnForm& form) { return form.norm_epsilon.has_value(); }

}  // namespace twell
#pragma GCC visibility pop
