// The sparse feed-forward layer on tensors that are not on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "models/device.h"
#include "models/feed_forward.h"

namespace twell::lm {

// The share of non-zeros that earlier calls of a layer had, learnt without waiting for the device:
// counts travel to the host behind the work, and are looked at once they have arrived.
class DensityProbe {
 public:
  explicit DensityProbe(DeviceRuntime& runtime);
  // `nnz`: an int64 on the device, the non-zeros of `elements` gate values. Skipped while the count
  // before it is still on its way, and while a graph is recorded.
  void record(const at::Tensor& nnz, std::int64_t elements);
  // Of the last count that has arrived; none before the first.
  std::optional<double> density();

 private:
  DeviceRuntime& runtime_;
  at::Tensor host_;  // int64 [1]
  std::unique_ptr<Marker> marker_;
  std::int64_t elements_ = 0;  // of the count on its way; 0: none
  std::optional<double> density_;
};

// As make_sparse_feed_forward(), on torch.ops.twell of the weights' device, bf16 or f16. Keeps one
// copy of each weight: the packed gate has the same rows, so the dense path reads it as well.
// automatic: the first call waits for its own density; then every kSampledCalls-th counts, and
// nothing is waited for. `runtime`: of that device; outlives the layer.
std::unique_ptr<FeedForward> make_device_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, DeviceRuntime& runtime);

}  // namespace twell::lm
