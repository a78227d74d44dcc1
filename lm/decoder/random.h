// A small random generator of our own: the same numbers from the same seed with every compiler and
// standard library, which std:: distributions do not promise.
#pragma once

#include <cmath>
#include <cstdint>

namespace twell::lm {

// splitmix64 (Steele, Lea, Flood 2014): passes BigCrush, any seed is a good one, 8 bytes of state.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  // [0, 1), multiples of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  // Standard normal (Box-Muller).
  double normal() {
    if (spare_ready_) {
      spare_ready_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    const double angle = 6.283185307179586 * uniform();
    spare_ = radius * std::sin(angle);
    spare_ready_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::uint64_t state_;
  double spare_ = 0.0;
  bool spare_ready_ = false;
};

}  // namespace twell::lm
