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

// Times its own lifetime.
class PieceTimer {
 public:
  PieceTimer(Profile* profile, Piece piece) : profile_(profile), piece_(piece) {
    if (profile_ != nullptr) begin_ = Clock::now();
  }
  ~PieceTimer() {
    if (profile_ != nullptr) {
      (*profile_)[piece_] += std::chrono::duration<double>(Clock::now() - begin_).count();
    }
  }
  PieceTimer(const PieceTimer&) = delete;
  PieceTimer& operator=(const PieceTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  Piece piece_;
  Clock::time_point begin_;
};

// f() as a piece.
template <class F>
auto timed(Profile* profile, Piece piece, F f) {
  const PieceTimer timer(profile, piece);
  return f();
}

}  // namespace twell::lm
