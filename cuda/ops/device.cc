#include <cuda_runtime.h>

#include "core/check.h"
#include "cuda/kernels/common/check.h"
#include "twell/cuda.h"

namespace twell::cuda {

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // no driver, or no GPU
    return 0;
  }
  return count;
}

Device device(int ordinal) {
  constexpr const char* kOperation = "cuda::device";
  const int count = device_count();
  if (count == 0) {
    throw Error(ErrorKind::unsupported, concat("twell::", kOperation),
                "no NVIDIA GPU or driver on this machine");
  }
  require(ordinal >= 0 && ordinal < count, kOperation, "ordinal", "expected 0 to ", count - 1,
          ", got ", ordinal);
  cudaDeviceProp properties = {};
  TWELL_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  if (properties.major < 8) {
    throw Error(ErrorKind::unsupported, concat("twell::", kOperation),
                concat(static_cast<const char*>(properties.name), " has compute capability ",
                       properties.major, ".", properties.minor, "; 8.0 or above is needed"));
  }
  Device out;
  out.ordinal = ordinal;
  out.major = properties.major;
  out.minor = properties.minor;
  out.sm_count = properties.multiProcessorCount;
  out.shared_bytes = properties.sharedMemPerBlockOptin;
  out.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  out.memory_bytes = properties.totalGlobalMem;
  const auto attribute = [ordinal](cudaDeviceAttr name) {
    int value = 0;
    TWELL_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, ordinal));
    return value;
  };
  out.clock_khz = attribute(cudaDevAttrClockRate);
  out.memory_clock_khz = attribute(cudaDevAttrMemoryClockRate);
  out.memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
  out.name = properties.name;
  return out;
}

Device current_device() {
  if (device_count() == 0) return device(0);
  int ordinal = 0;
  TWELL_CUDA_CHECK(cudaGetDevice(&ordinal));
  return device(ordinal);
}

}  // namespace twell::cuda
