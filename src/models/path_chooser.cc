#include "models/path_chooser.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace twell::lm {

PathChooser::PathChooser(CostModel cost, const FfnShape& shape, DeviceRuntime& runtime)
    : cost_(std::move(cost)),
      shape_(shape),
      runtime_(runtime),
      host_(runtime.host_buffer(1, at::kLong)),
      marker_(runtime.make_marker()) {}

bool PathChooser::dense(std::int64_t rows, double hot) {
  look();
  return density_ && cost_.prefers_dense(rows, *density_, shape_, hot);
}

bool PathChooser::samples() {
  constexpr std::int64_t kEvery = 16;
  if (runtime_.capturing()) {
    recorded_ = true;
    return false;
  }
  const std::int64_t call = calls_++;
  return std::exchange(recorded_, false) || call < 2 || call % kEvery == 0;
}

void PathChooser::saw(const at::Tensor& nnz, std::int64_t rows) {
  if (rows == 0 || runtime_.capturing()) return;
  look();
  if (rows_ != 0) return;
  host_.copy_(nnz.view({1}), /*non_blocking=*/true);
  marker_->set();
  rows_ = rows;
}

void PathChooser::look() {
  // Asking an event is not allowed while a graph is recorded.
  if (rows_ == 0 || runtime_.capturing() || !marker_->reached()) return;
  const auto rows = static_cast<double>(std::exchange(rows_, 0));
  const double now = static_cast<double>(*host_.const_data_ptr<std::int64_t>()) /
                     (rows * static_cast<double>(shape_.hidden));
  // A few tokens say little of a text: 64 of them count in full.
  const double weight = std::min(1.0, rows / 64);
  density_ = density_ ? *density_ + weight * (now - *density_) : now;
}

}  // namespace twell::lm
