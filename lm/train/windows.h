// Which windows of a token stream are trained on, and in which order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace twell::lm {

// A stream of `tokens` ids is cut into windows of `context` ids and one more, the target of the
// last; window i begins at id i * context. Every `1 / validation_fraction`-th window, evenly spread
// over the stream, is held out.
class WindowSplit {
 public:
  // Throws Error (invalid_argument) where the stream has no window to train on, saying how many
  // tokens are needed. A fraction of 0 holds nothing out.
  WindowSplit(std::int64_t tokens, std::int64_t context, double validation_fraction);

  std::int64_t train_windows() const { return windows_ - validation_windows(); }
  std::int64_t validation_windows() const { return every_ > 0 ? windows_ / every_ : 0; }
  std::int64_t context() const { return context_; }
  // First token of the i-th training or validation window.
  std::int64_t train_begin(std::int64_t i) const;
  std::int64_t validation_begin(std::int64_t i) const;

 private:
  std::int64_t context_;
  std::int64_t windows_;
  std::int64_t every_ = 0;  // window every_ - 1 of each group of every_ is held out; 0: none
};

// Visits all windows once per epoch, in an order that depends on seed and epoch alone.
class ShuffledWindows {
 public:
  ShuffledWindows(std::int64_t count, std::uint64_t seed);

  std::int64_t next();  // in [0, count)
  // Number of windows taken so far. Setting it gives the same order as taking that many.
  std::int64_t position() const { return position_; }
  void seek(std::int64_t position) { position_ = position; }

 private:
  void shuffle(std::int64_t epoch);

  std::int64_t count_;
  std::uint64_t seed_;
  std::int64_t position_ = 0;
  std::int64_t epoch_ = -1;  // that order_ is of
  std::vector<std::int64_t> order_;
};

}  // namespace twell::lm
