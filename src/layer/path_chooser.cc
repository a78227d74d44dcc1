#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "twell/cost.h"

namespace twell {

void MovingShare::saw(std::int64_t count, std::int64_t rows) {
  if (rows == 0) return;
  const auto of = static_cast<double>(rows);
  const double now = static_cast<double>(count) / (of * neurons_);
  // A few tokens say little of a text: 64 of them count in full.
  const double weight = std::min(1.0, of / 64);
  share_ = share_ ? *share_ + weight * (now - *share_) : now;
}

PathChooser::PathChooser(CostModel cost, const FfnShape& shape)
    : cost_(std::move(cost)), shape_(shape), density_(shape.neurons) {}

bool PathChooser::dense(std::int64_t rows, double hot) const {
  return density() && cost_.prefers_dense(rows, *density(), shape_, hot);
}

std::string PathChooser::describe() const {
  char seen[48] = "no density seen yet";
  if (density()) std::snprintf(seen, sizeof seen, "last density %.2f %%", *density() * 100);
  return std::string("dense GEMMs where they are faster, ") + seen + "; cost: " + cost_.source();
}

bool PathChooser::samples(bool recording) {
  constexpr std::int64_t kEvery = 16;
  if (recording) {
    recorded_ = true;
    return false;
  }
  const std::int64_t call = calls_++;
  return std::exchange(recorded_, false) || call < 2 || call % kEvery == 0;
}

}  // namespace twell
