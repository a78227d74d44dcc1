// Plans a layer for the GPU that is there, or for one that is not: plans need none.
#include "twell/cuda.h"

#include <cstdio>

int main() {
  twell::cuda::Device device;
  if (twell::cuda::device_count() > 0) {
    device = twell::cuda::current_device();
  } else {
    device.major = 8;
    device.sm_count = 108;
    device.shared_bytes = std::size_t{163} << 10;
  }
  const auto plan = twell::cuda::plan_ffn(device, {16, 2048, 5632});
  std::printf("%s\n", plan.to_string().c_str());
  return plan.workspace_bytes > 0 ? 0 : 1;
}
