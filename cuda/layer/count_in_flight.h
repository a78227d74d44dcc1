// A count made on a device, and known on the host a while later: nothing waits for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "device/device.h"

namespace twell::lm {

class CountInFlight {
 public:
  // `sink` is given each count that arrived, and the rows of the call that it is of. `runtime`: of
  // the device; outlives this.
  using Sink = std::function<void(std::int64_t count, std::int64_t rows)>;
  CountInFlight(DeviceRuntime& runtime, Sink sink);
  CountInFlight(const CountInFlight&) = delete;  // sinks are mostly of one place
  CountInFlight& operator=(const CountInFlight&) = delete;

  // int64 [] on the device. It travels to the host behind the work, and is looked at once it has
  // arrived. Passed over while another one is on its way, and while a graph is recorded.
  void send(const at::Tensor& count, std::int64_t rows);
  // Takes in what has arrived; nothing while a graph is recorded.
  void look();

 private:
  DeviceRuntime& runtime_;
  Sink sink_;
  at::Tensor host_;  // int64 [1]
  std::unique_ptr<Marker> marker_;
  std::int64_t rows_ = 0;  // of the count on its way; 0: none
};

}  // namespace twell::lm
