// The emulated device and its memory.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "cuda/tests/emulation/fibers.h"

namespace {

struct EmulatedDevice {
  int count = 1;
  int current = 0;
  int ptx_version = 90;
  int major = 9;
  int minor = 0;
  const char* name = "emulated";
  int sm_count = 4;
  std::size_t shared_bytes = std::size_t{227} << 10;
};
EmulatedDevice device;
int overlapping = 0;
bool library = true;
bool capturing = false;
twell::emulation::DeviceMemory allocations;
std::map<const void*, std::size_t> shared_allowed;
cudaError_t last_error = cudaSuccess;

constexpr std::size_t kMemory = std::size_t{4} << 30;
constexpr std::size_t kAlignment = 256;

cudaError_t fail(cudaError_t error) { return last_error = error; }

const twell::emulation::Allocation* allocation_of(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const auto next = allocations.upper_bound(const_cast<std::byte*>(at));
  if (next == allocations.begin()) return nullptr;
  const auto& [first, allocation] = *std::prev(next);
  return at < first + allocation.bytes ? &allocation : nullptr;
}

}  // namespace

namespace twell::emulation {
void set_device(int ordinal, int ptx_version) {
  device.count = ordinal + 1;
  device.current = ordinal;
  device.ptx_version = ptx_version;
}
void set_device_count(int count) { device.count = count; }
void set_model(const char* name, int sm_count) {
  device.name = name;
  device.sm_count = sm_count;
}
void set_capturing(bool on) { capturing = on; }
void set_library(bool present) { library = present; }
bool has_library() { return library; }
int overlapping_launches() { return overlapping; }
const DeviceMemory& device_memory() { return allocations; }
}  // namespace twell::emulation

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device.count;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = device.current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= device.count) return fail(cudaErrorInvalidDevice);
  device.current = ordinal;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (ordinal < 0 || ordinal >= device.count) return fail(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::strncpy(properties->name, device.name, sizeof properties->name - 1);
  properties->major = device.major;
  properties->minor = device.minor;
  properties->multiProcessorCount = device.sm_count;
  properties->sharedMemPerBlockOptin = device.shared_bytes;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const twell::emulation::Allocation* allocation = allocation_of(pointer);
  attributes->type = allocation != nullptr ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = allocation != nullptr ? allocation->device : -2;  // as the runtime has it
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

struct CUevent_st {
  int milliseconds = 0;
};
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  static int now = 0;
  event->milliseconds = ++now;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (capturing) return fail(cudaErrorStreamCaptureUnsupported);
  if (bytes > kMemory) return fail(cudaErrorMemoryAllocation);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  // The exact size: AddressSanitizer watches the first byte past it.
  if (posix_memalign(pointer, kAlignment, bytes) != 0) return fail(cudaErrorMemoryAllocation);
  std::memset(*pointer, 0xff, bytes);
  allocations[static_cast<std::byte*>(*pointer)] = {bytes, device.current};
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (capturing) return fail(cudaErrorStreamCaptureUnsupported);
  if (allocations.erase(static_cast<std::byte*>(pointer)) == 0) {
    return fail(cudaErrorInvalidValue);
  }
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (capturing) return fail(cudaErrorStreamCaptureUnsupported);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (capturing) return fail(cudaErrorStreamCaptureUnsupported);
  return cudaGetLastError();
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t) {
  std::memset(pointer, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidValue);
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->ptxVersion = device.ptx_version;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  if (static_cast<std::size_t>(value) > device.shared_bytes) return fail(cudaErrorInvalidValue);
  shared_allowed[function] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* function) {
  constexpr std::size_t kDefaultShared = std::size_t{48} << 10;
  const auto allowed = shared_allowed.find(function);
  const std::size_t shared =
      allowed == shared_allowed.end() ? kDefaultShared : std::max(kDefaultShared, allowed->second);
  const bool fits = config.gridDim.x > 0 && config.gridDim.x <= 0x7fffffffU &&
                    config.gridDim.y > 0 && config.gridDim.y <= 65535U && config.gridDim.z > 0 &&
                    config.gridDim.z <= 65535U && config.blockDim.x > 0 &&
                    config.blockDim.x <= 1024U;
  // Kernels that overlap are one of sm_90's abilities.
  const bool allowed_attributes = config.numAttrs == 0 || device.major >= 9;
  if (!fits || !allowed_attributes || config.dynamicSmemBytes > shared) {
    return fail(cudaErrorInvalidValue);
  }
  overlapping += config.numAttrs > 0 ? 1 : 0;
  return cudaSuccess;
}
