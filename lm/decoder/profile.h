// Where the time of a forward pass goes. Off unless asked for: a model without a profile spends a
// comparison with null per piece.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace twell::lm {

enum class Piece : std::uint8_t { ffn, attention, other_linear, norm_and_rope, logits, sampling };
inline constexpr std::array<const char*, 6> kPieceNames = {
    "ffn", "attention", "other_linear", "norm_and_rope", "logits", "sampling"};

// Seconds of wall time by piece, summed until clear().
struct Profile {
  std::array<double, kPieceNames.size()> seconds{};
  double& operator[](Piece piece) { return seconds[static_cast<std::size_t>(piece)]; }
  void clear() { seconds.fill(0.0); }
};

// Adds its own lifetime to *seconds, unless that is null.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) begin_ = Clock::now();
  }
  ~Stopwatch() {
    if (seconds_ != nullptr) {
      *seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point begin_;
};

// The same for a piece.
class PieceTimer : Stopwatch {
 public:
  PieceTimer(Profile* profile, Piece piece)
      : Stopwatch(profile != nullptr ? &(*profile)[piece] : nullptr) {}
};

// f() as a piece.
template <class F>
auto timed(Profile* profile, Piece piece, F f) {
  const PieceTimer timer(profile, piece);
  return f();
}

}  // namespace twell::lm
