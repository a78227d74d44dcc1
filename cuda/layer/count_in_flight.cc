#include "cuda/layer/count_in_flight.h"

#include <torch/types.h>

#include <utility>

namespace twell::lm {

CountInFlight::CountInFlight(DeviceRuntime& runtime, Sink sink)
    : runtime_(runtime),
      sink_(std::move(sink)),
      host_(runtime.host_buffer(1, at::kLong)),
      marker_(runtime.make_marker()) {}

void CountInFlight::send(const at::Tensor& count, std::int64_t rows) {
  if (rows == 0 || runtime_.capturing()) return;
  look();
  if (rows_ != 0) return;
  host_.copy_(count.view({1}), /*non_blocking=*/true);
  marker_->set();
  rows_ = rows;
}

void CountInFlight::look() {
  // Asking an event is not allowed while a graph is recorded.
  if (rows_ == 0 || runtime_.capturing() || !marker_->reached()) return;
  sink_(*host_.const_data_ptr<std::int64_t>(), std::exchange(rows_, 0));
}

}  // namespace twell::lm
