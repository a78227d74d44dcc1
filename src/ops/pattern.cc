#include <algorithm>

#include "twell/train.h"

namespace twell {

FfnPatternView FfnPattern::view() const {
  FfnPatternView out;
  out.rows = rows_;
  out.hidden = shape_.hidden;
  out.dtype = shape_.dtype;
  out.offsets = offsets_.data();
  out.neurons = neurons_.data();
  out.v = v_.data();
  out.u = shape_.gated ? u_.data() : nullptr;
  return out;
}

std::size_t FfnPattern::bytes() const {
  return offsets_.size() * sizeof(std::int64_t) + neurons_.size() * sizeof(std::int32_t) +
         v_.size() + u_.size();
}

void FfnPattern::reset(std::int64_t rows, const FfnShape& shape) {
  shape_ = shape;
  rows_ = rows;
  offsets_.assign(1, 0);
  offsets_.reserve(static_cast<std::size_t>(rows) + 1);
  neurons_.clear();
  v_.clear();
  u_.clear();
}

std::int64_t FfnPattern::append(const std::int32_t* counts, std::int64_t rows) {
  const std::int64_t first = offsets_.back();
  for (std::int64_t r = 0; r < rows; ++r) offsets_.push_back(offsets_.back() + counts[r]);
  const auto places = static_cast<std::size_t>(offsets_.back());
  const auto done = static_cast<std::size_t>(offsets_.size() - 1);
  if (places > neurons_.capacity()) {
    // As many a row as so far, and a tenth more: grown once or twice in a call.
    const std::size_t all = places / done * static_cast<std::size_t>(rows_);
    const std::size_t room = std::max(places, all + all / 10);
    neurons_.reserve(room);
    v_.reserve(room * size_of(shape_.dtype));
    if (shape_.gated) u_.reserve(room * size_of(shape_.dtype));
  }
  neurons_.resize(places);
  v_.resize(places * size_of(shape_.dtype));
  if (shape_.gated) u_.resize(places * size_of(shape_.dtype));
  return first;
}

}  // namespace twell
