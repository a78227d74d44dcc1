#include "train/windows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "decoder/random.h"
#include "files/file_error.h"

namespace twell::lm {
namespace {

// In [0, bound), by multiplication; the bias is below bound / 2^64.
std::uint64_t below(Random& random, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random.next()) * bound) >> 64);
}

}  // namespace

WindowSplit::WindowSplit(std::int64_t tokens, std::int64_t context, double validation_fraction)
    : context_(context), windows_(tokens > 0 ? (tokens - 1) / context : 0) {
  if (windows_ < 1) {
    io::fail_argument("training text",
                      "has {} tokens, one window of context {} needs {}: give more text or a "
                      "shorter context",
                      tokens, context, context + 1);
  }
  if (!(validation_fraction >= 0.0 && validation_fraction <= 0.5)) {
    io::fail_argument("validation fraction", "expected 0 to 0.5, got {}", validation_fraction);
  }
  if (validation_fraction > 0.0 && windows_ > 1) {
    // At least one window is held out, however short the text.
    every_ = std::min<std::int64_t>(windows_, std::llround(1.0 / validation_fraction));
  }
}

std::int64_t WindowSplit::train_begin(std::int64_t i) const {
  return (every_ > 0 ? i + i / (every_ - 1) : i) * context_;
}

std::int64_t WindowSplit::validation_begin(std::int64_t i) const {
  return ((i + 1) * every_ - 1) * context_;
}

ShuffledWindows::ShuffledWindows(std::int64_t count, std::uint64_t seed)
    : count_(count), seed_(seed), order_(static_cast<std::size_t>(count)) {}

void ShuffledWindows::shuffle(std::int64_t epoch) {
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  Random random(Random(seed_).next() ^ static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[below(random, i)]);
  }
}

std::int64_t ShuffledWindows::next() {
  if (position_ / count_ != epoch_) shuffle(position_ / count_);
  return order_[static_cast<std::size_t>(position_++ % count_)];
}

}  // namespace twell::lm
