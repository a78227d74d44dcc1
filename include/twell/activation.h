// The activations of a feed-forward layer. A gate's activation yields zeros: a pre-activation v
// above a threshold becomes f(v), and any other becomes 0. The threshold is 0; only fat_relu has
// its own. f(0) = 0. Up may have an activation too (dReLU); identity means that it has none.
//
// CPU kernels, CUDA kernels, training and the reference all take their formulas from here.
// docs/adding-an-activation.md says what else a new activation needs.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define TWELL_HOST_DEVICE __host__ __device__
#else
#define TWELL_HOST_DEVICE
#endif

#pragma GCC visibility push(default)
namespace twell {

// An activation, of a gate or of up.
enum class Activation : std::uint8_t {
  relu,          // max(v, 0)
  relu_squared,  // max(v, 0)²
  fat_relu,      // v > threshold ? v : 0, threshold ≥ 0
  identity,      // v; for up only
};
// The activations that a gate may have.
inline constexpr Activation kActivations[] = {Activation::relu, Activation::relu_squared,
                                              Activation::fat_relu};
// The activations that up may have.
inline constexpr Activation kUpActivations[] = {Activation::identity, Activation::relu,
                                                Activation::relu_squared};

// As options and operators spell it: "relu", "relu_squared", "fat_relu", "identity".
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

// Whether the activation has its own threshold.
constexpr bool has_threshold(Activation kind) { return kind == Activation::fat_relu; }

// f(v), for a v above the threshold.
template <class T>
TWELL_HOST_DEVICE constexpr T activated(Activation kind, T v) {
  return kind == Activation::relu_squared ? v * v : v;
}

// f'(v), for a v above the threshold.
template <class T>
TWELL_HOST_DEVICE constexpr T activated_slope(Activation kind, T v) {
  return kind == Activation::relu_squared ? 2 * v : T(1);
}

// f'(v), computed from g = f(v). For v² it is 2 √g, with half the relative error of a rounded g.
TWELL_HOST_DEVICE inline float slope_by_value(Activation kind, float g) {
  return kind == Activation::relu_squared ? 2 * sqrtf(g) : 1.0F;
}

// fu(u) for any u, where fu is the activation of up. Its threshold is 0; NaN counts as above it.
template <class T>
TWELL_HOST_DEVICE constexpr T up_activated(Activation kind, T u) {
  return kind != Activation::identity && u <= 0 ? T(0) : activated(kind, u);
}
// fu'(u) for any u.
template <class T>
TWELL_HOST_DEVICE constexpr T up_activated_slope(Activation kind, T u) {
  return kind != Activation::identity && u <= 0 ? T(0) : activated_slope(kind, u);
}

// h of a neuron that fired, from g = f(v) and u.
template <class T>
TWELL_HOST_DEVICE constexpr T combine(Activation up, T g, T u) {
  return g * up_activated(up, u);
}
// The gradients of v and u of a neuron that fired.
template <class T>
struct PlaceGradients {
  T v, u;
};
// The backward of combine(): the gradients of v and u from dh, that of h. `slope` is f'(v).
template <class T>
TWELL_HOST_DEVICE constexpr PlaceGradients<T> uncombine(Activation up, T dh, T g, T slope, T u) {
  return {dh * up_activated(up, u) * slope, dh * g * up_activated_slope(up, u)};
}
// The same from v.
template <class T>
TWELL_HOST_DEVICE constexpr PlaceGradients<T> uncombine(Activation gate, Activation up, T dh, T v,
                                                        T u) {
  return uncombine(up, dh, activated(gate, v), activated_slope(gate, v), u);
}

// An activation and its threshold. NaN passes through every activation and is a non-zero; ±0 is
// not.
struct ActivationSpec {
  Activation kind = Activation::relu;
  float threshold = 0.0F;  // only for a kind that has one

  // A pre-activation is kept unless it is at most this number. So NaN is kept.
  constexpr float kept_above() const { return has_threshold(kind) ? threshold : 0.0F; }
};

}  // namespace twell
#pragma GCC visibility pop
