#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "twell/train.h"

namespace twell {

FfnPattern::FfnPattern(const FfnPatternView& lists) : view_(lists), borrowed_(true) {}

std::size_t FfnPattern::bytes() const {
  const std::size_t place = sizeof(std::int32_t) + (gated_ ? 2 : 1) * size_of(view_.dtype);
  return static_cast<std::size_t>(view_.rows + 1) * sizeof(std::int64_t) +
         static_cast<std::size_t>(view_.nnz()) * place;
}

void FfnPattern::reset(std::int64_t rows, const FfnShape& shape) {
  if (borrowed_) {
    require(view_.rows == rows && view_.cols == shape.neurons && view_.dtype == shape.dtype &&
                (view_.u != nullptr || !shape.gated || rows * shape.neurons == 0),
            "ffn_forward", "pattern", "expected room for ", name_of(shape.dtype), " [", rows, ", ",
            shape.neurons, "], got it for ", name_of(view_.dtype), " [", view_.rows, ", ",
            view_.cols, "]");
  } else {
    view_.rows = rows;
    view_.cols = shape.neurons;
    view_.dtype = shape.dtype;
    offsets_.resize(static_cast<std::size_t>(rows) + 1);
    view_.offsets = offsets_.data();
  }
  gated_ = shape.gated;
  done_ = 0;
  const_cast<std::int64_t*>(view_.offsets)[0] = 0;
}

void FfnPattern::append(const std::int32_t* counts, std::int64_t rows) {
  auto* offsets = const_cast<std::int64_t*>(view_.offsets) + done_;
  for (std::int64_t r = 0; r < rows; ++r) offsets[r + 1] = offsets[r] + counts[r];
  done_ += rows;
  if (!borrowed_) reserve(offsets[rows]);
}

void FfnPattern::keep(const std::int32_t* counts, std::int64_t rows) {
  auto* offsets = const_cast<std::int64_t*>(view_.offsets) + done_ - rows;
  const auto move = [](void* list, std::size_t element, std::int64_t from, std::int64_t count,
                       std::int64_t to) {
    auto* bytes = static_cast<std::byte*>(list);
    std::memmove(bytes + static_cast<std::size_t>(to) * element,
                 bytes + static_cast<std::size_t>(from) * element,
                 static_cast<std::size_t>(count) * element);
  };
  std::int64_t end = offsets[0];
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t from = std::exchange(offsets[r], end);
    if (from != end) {
      move(neurons(), sizeof(std::int32_t), from, counts[r], end);
      move(v(), size_of(view_.dtype), from, counts[r], end);
      if (gated_) move(u(), size_of(view_.dtype), from, counts[r], end);
    }
    end += counts[r];
  }
  offsets[rows] = end;
}

void FfnPattern::reserve(std::int64_t places) {
  const auto wanted = static_cast<std::size_t>(places);
  if (wanted > neurons_.size()) {
    // As many a row as so far, and a tenth more: grown once or twice in a call.
    const auto all = static_cast<std::size_t>(places / done_ * view_.rows);
    const std::size_t room = std::max(wanted, all + all / 10);
    neurons_.resize(room);
    v_.resize(room * size_of(view_.dtype));
    if (gated_) u_.resize(room * size_of(view_.dtype));
  }
  view_.neurons = neurons_.data();
  view_.v = v_.data();
  view_.u = gated_ ? u_.data() : nullptr;
}

}  // namespace twell
