#include "choice/moving_share.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace twell::lm {

MovingShare::MovingShare(std::int64_t neurons, DeviceRuntime& runtime)
    : neurons_(static_cast<double>(neurons)),
      runtime_(runtime),
      host_(runtime.host_buffer(1, at::kLong)),
      marker_(runtime.make_marker()) {}

void MovingShare::saw(const at::Tensor& count, std::int64_t rows) {
  if (rows == 0 || runtime_.capturing()) return;
  look();
  if (rows_ != 0) return;
  host_.copy_(count.view({1}), /*non_blocking=*/true);
  marker_->set();
  rows_ = rows;
}

void MovingShare::look() {
  // Asking an event is not allowed while a graph is recorded.
  if (rows_ == 0 || runtime_.capturing() || !marker_->reached()) return;
  const auto rows = static_cast<double>(std::exchange(rows_, 0));
  const double now = static_cast<double>(*host_.const_data_ptr<std::int64_t>()) / (rows * neurons_);
  // A few tokens say little of a text: 64 of them count in full.
  const double weight = std::min(1.0, rows / 64);
  share_ = share_ ? *share_ + weight * (now - *share_) : now;
}

}  // namespace twell::lm
