// The activations of a feed-forward layer. Those of a gate yield zeros: a pre-activation v above a
// threshold becomes f(v), any other 0. The threshold is 0, but for fat_relu, which brings its own;
// f(0) = 0. Of up there may be one as well (dReLU), or none: identity.
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
  identity,      // v; of up alone
};
// Those of a gate.
inline constexpr Activation kActivations[] = {Activation::relu, Activation::relu_squared,
                                              Activation::fat_relu};
// Those of up.
inline constexpr Activation kUpActivations[] = {Activation::identity, Activation::relu,
                                                Activation::relu_squared};

constexpr const char* name_of(Activation kind) {
  switch (kind) {
    case Activation::relu:
      return "relu";
    case Activation::relu_squared:
      return "relu_squared";
    case Activation::fat_relu:
      return "fat_relu";
    case Activation::identity:
      return "identity";
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

// The same of any u, by up's activation: it has no threshold but 0. NaN is above it.
template <class T>
TWELL_HOST_DEVICE constexpr T up_activated(Activation kind, T u) {
  return kind != Activation::identity && u <= 0 ? T(0) : activated(kind, u);
}
template <class T>
TWELL_HOST_DEVICE constexpr T up_activated_slope(Activation kind, T u) {
  return kind != Activation::identity && u <= 0 ? T(0) : activated_slope(kind, u);
}

// h of a place that fired, from the gate's activation g = f(v) and from u.
template <class T>
TWELL_HOST_DEVICE constexpr T combine(Activation up, T g, T u) {
  return g * up_activated(up, u);
}
// The gradients of v and u there, from that of h.
template <class T>
struct PlaceGradients {
  T v, u;
};
template <class T>
TWELL_HOST_DEVICE constexpr PlaceGradients<T> uncombine(Activation gate, Activation up, T dh, T v,
                                                        T u) {
  return {dh * up_activated(up, u) * activated_slope(gate, v),
          dh * activated(gate, v) * up_activated_slope(up, u)};
}

// NaN passes through every activation and is a non-zero; ±0 never is.
struct ActivationSpec {
  Activation kind = Activation::relu;
  float threshold = 0.0F;  // of a kind that has one

  // What a pre-activation must not be at most, to be kept: NaN is.
  constexpr float kept_above() const { return has_threshold(kind) ? threshold : 0.0F; }
};

}  // namespace twell
