// The activations that yield zeros. All have one form: a pre-activation v above a threshold becomes
// f(v), any other 0. The threshold is 0, but for fat_relu, which brings its own; f(0) = 0.
//
// The formulas stand here alone, for the CPU kernels, the CUDA kernels, training and the reference;
// docs/adding-an-activation.md says what else a new one needs.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TWELL_HOST_DEVICE __host__ __device__
#else
#define TWELL_HOST_DEVICE
#endif

namespace twell {

enum class Activation : std::uint8_t {
  relu,          // max(v, 0)
  relu_squared,  // max(v, 0)²
  fat_relu,      // v > threshold ? v : 0, threshold ≥ 0
};
inline constexpr Activation kActivations[] = {Activation::relu, Activation::relu_squared,
                                              Activation::fat_relu};

constexpr const char* name_of(Activation kind) {
  switch (kind) {
    case Activation::relu:
      return "relu";
    case Activation::relu_squared:
      return "relu_squared";
    case Activation::fat_relu:
      return "fat_relu";
  }
  return "?";
}

constexpr bool has_threshold(Activation kind) { return kind == Activation::fat_relu; }

// f(v) of a v above the threshold.
template <class T>
TWELL_HOST_DEVICE constexpr T activated(Activation kind, T v) {
  return kind == Activation::relu_squared ? v * v : v;
}

// f'(v) of a v above the threshold.
template <class T>
TWELL_HOST_DEVICE constexpr T activated_slope(Activation kind, T v) {
  return kind == Activation::relu_squared ? 2 * v : T(1);
}

// NaN passes through every activation and is a non-zero; ±0 never is.
struct ActivationSpec {
  Activation kind = Activation::relu;
  float threshold = 0.0F;  // of a kind that has one

  // What a pre-activation must not be at most, to be kept: NaN is.
  constexpr float kept_above() const { return has_threshold(kind) ? threshold : 0.0F; }
};

}  // namespace twell
