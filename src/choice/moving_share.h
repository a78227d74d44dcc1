// What share of a layer's neurons something was true of, in the calls so far: counted on a device,
// and known on the host a while later.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "choice/device.h"

namespace twell::lm {

class MovingShare {
 public:
  // `neurons`: H. `runtime`: of the layer's device; outlives this.
  MovingShare(std::int64_t neurons, DeviceRuntime& runtime);

  // Of rows · H neurons so many: int64 [] on the device. Nothing waits for it: it travels to the
  // host behind the work, and is looked at once it has arrived. Passed over while another one is on
  // its way, and while a graph is recorded.
  void saw(const at::Tensor& count, std::int64_t rows);
  // Takes in what has arrived; nothing while a graph is recorded.
  void look();
  // Moving average of what look() has taken in; none before the first.
  std::optional<double> value() const { return share_; }

 private:
  double neurons_;
  DeviceRuntime& runtime_;
  at::Tensor host_;  // int64 [1]
  std::unique_ptr<Marker> marker_;
  std::int64_t rows_ = 0;  // of the count on its way; 0: none
  std::optional<double> share_;
};

}  // namespace twell::lm
