// What the two paths of a layer cost on a device, timed.
#pragma once

#include <functional>

#include "device/device.h"
#include "twell/cost.h"

namespace twell::lm {

// Seconds of a call on a device: the least of three runs of as many calls as take 2 ms. `recorded`:
// as replays of a recording of several calls, which is how decoding runs a layer. Throws Error
// while a graph is being recorded: timing waits for the device, which a recording cannot.
double seconds_of(DeviceRuntime& runtime, bool recorded, const std::function<void()>& call);

// A layer as measured_cost() runs it. x is [rows, D].
struct TimedLayer {
  at::Tensor gate;  // [H, D]
  std::function<void(const at::Tensor& x)> dense;
  // With pre-activations up to the threshold left out, and the first `hot` neurons multiplied
  // densely.
  std::function<void(const at::Tensor& x, float threshold, std::int64_t hot)> sparse;
};
// The inputs are random, so that all neurons fire equally often: the sparse path is timed with what
// choose_hot() of the device names then, none or all neurons. What a layer gains by neurons that
// fire more often than others is estimated (HotChoice::time) and not timed.
//
// 1, 32, 256 and 1024 rows at densities of 0.5 to 40 %: a tenth of a second. Layers of one shape on
// one device are measured once a process; others wait for it.
CostModel measured_cost(DeviceRuntime& runtime, const FfnShape& shape, const TimedLayer& layer);

}  // namespace twell::lm
