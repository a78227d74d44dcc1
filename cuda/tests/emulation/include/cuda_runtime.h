// A GPU to test kernels with where there is none: what the project's CUDA sources use of the CUDA
// language and runtime, as ordinary C++.
//
// A block's threads are fibers of one system thread. They run until they meet a collective (a
// barrier of the block or warp, a shuffle, a matrix instruction), in an order that tests choose, so
// that a missing barrier shows as a wrong result. Blocks run one after the other unless a test
// chooses otherwise: then several take turns, and see of each other's stores only what fences
// promise (weak_memory.h). Asynchronous copies happen when they are waited for, not before. Device
// memory is heap memory of its exact size, shared memory of a block likewise and filled with NaN
// bytes, so that AddressSanitizer sees every access out of bounds. Only for tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)  // NOLINT: as CUDA has it
      : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace twell::emulation {

struct Place {
  dim3 thread, block, block_size, grid;
};
const Place& place();  // of the running fiber

// In which order a block's threads are resumed.
enum class Order { ascending, descending, shuffled };
void set_order(Order order, unsigned seed = 1);

// How a grid's blocks run.
//   one_by_one   each ends before the next starts.
//   interleaved  several take turns; what one stores the others see at once.
//   concurrent   the same, and a store reaches other blocks as late, a load is as old, as fences
//                allow.
// Blocks give way at collectives, fences, atomics and reads of other blocks' memory. `seed` chooses
// their turns, and whether they start in order or in any; a block starts when one of the `resident`
// ends.
enum class Blocks { one_by_one, interleaved, concurrent };
void set_blocks(Blocks blocks, unsigned seed = 1, int resident = 8);

// The GPUs are 0 to `ordinal`, which is the current one; their kernels' code was made from PTX of
// `ptx_version`.
void set_device(int ordinal, int ptx_version);
void set_device_count(int count);
// `name` stays where it is.
void set_model(const char* name, int sm_count);
// Streams record a graph: what waits or allocates is then an error.
void set_capturing(bool capturing);
// Whether cuBLASLt can be loaded; it can unless told otherwise.
void set_library(bool present);
bool has_library();
// Launches so far that were allowed to overlap the one before.
int overlapping_launches();

// Accesses of device memory by whole warps, since count_accesses(true). What the lanes of a warp
// access by one call in one trip through it counts as one: the same wrapper, called from the same
// line, for as many times since the warp's last collective. A lane that leaves out a trip which
// others take is matched with their next one. Only the wrappers of ptx_twins.h are seen, no plain
// C++ accesses.
struct Accesses {
  std::int64_t warps = 0;
  std::int64_t sectors = 0;  // of 32 bytes, touched
  std::int64_t needed = 0;   // by as many different bytes, if they lay together
  double worst = 0.0;        // touched to needed, of one access
  double ratio() const { return static_cast<double>(sectors) / static_cast<double>(needed); }
};
void count_accesses(bool on);  // from zero
// By the wrapper's name; those that were never called are not in it.
const std::map<std::string, Accesses>& accesses();

// Runs body() in every thread of the grid. Throws std::runtime_error where threads wait for others
// that never come.
void launch(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

void block_barrier();
void warp_barrier();
void fence();
// Exchanges `value` with all lanes of the warp: combine(values, present) is called once, by the
// last to arrive, with the 32 lanes' pointers; null for lanes that have ended.
void warp_collective(const char* what, void* value, void (*combine)(void* const* lanes));

std::byte* shared_memory();
std::size_t shared_bytes();

// Where the value at `at` truly is, until end_atomic() says that it was changed.
void* begin_atomic(void* at, std::size_t bytes);
void end_atomic(void* at, const void* truth, std::size_t bytes);
template <class T, class Change>
T atomic(T* at, Change change) {
  auto* truth = static_cast<T*>(begin_atomic(at, sizeof(T)));
  const T old = *truth;
  *truth = change(old);
  end_atomic(at, truth, sizeof(T));
  return old;
}

template <class To, class From>
To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// A number of the running thread, read where it is used.
template <dim3 Place::*kOf, unsigned dim3::*kAxis>
struct Figure {
  operator unsigned() const {
    return (place().*kOf).*kAxis;
  }  // NOLINT(google-explicit-constructor)
};
template <dim3 Place::*kOf>
struct Figures {
  Figure<kOf, &dim3::x> x;
  Figure<kOf, &dim3::y> y;
  Figure<kOf, &dim3::z> z;
};

}  // namespace twell::emulation

inline constexpr twell::emulation::Figures<&twell::emulation::Place::thread> threadIdx;
inline constexpr twell::emulation::Figures<&twell::emulation::Place::block> blockIdx;
inline constexpr twell::emulation::Figures<&twell::emulation::Place::block_size> blockDim;
inline constexpr twell::emulation::Figures<&twell::emulation::Place::grid> gridDim;

inline void __syncthreads() { twell::emulation::block_barrier(); }
// Whole warps alone, as all that takes a mask of lanes.
void __syncwarp(unsigned mask = 0xffffffffU);
inline void __threadfence() { twell::emulation::fence(); }
inline void __threadfence_block() {}  // a block's threads see each other's stores at once

inline float __uint_as_float(unsigned bits) { return twell::emulation::bits_of<float>(bits); }
inline unsigned __float_as_uint(float value) { return twell::emulation::bits_of<unsigned>(value); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
// Byte i of the result is byte (selector >> 4i) % 8 of b:a.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    out |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7U) * 8 & 0xffU) << 8 * i;
  }
  return out;
}
// Products of signed bytes, added to c.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) {
    c += static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i);
  }
  return c;
}
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }

int __any_sync(unsigned mask, int predicate);
unsigned __ballot_sync(unsigned mask, int predicate);
unsigned __reduce_add_sync(unsigned mask, unsigned value);
int __reduce_add_sync(unsigned mask, int value);
float __shfl_xor_sync(unsigned mask, float value, int lanes);
double __shfl_xor_sync(unsigned mask, double value, int lanes);
int __shfl_xor_sync(unsigned mask, int value, int lanes);
unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lanes);
int __shfl_up_sync(unsigned mask, int value, int distance, int width = 32);
float __shfl_down_sync(unsigned mask, float value, int distance, int width = 32);
int __shfl_down_sync(unsigned mask, int value, int distance, int width = 32);
unsigned __shfl_down_sync(unsigned mask, unsigned value, int distance, int width = 32);
float __shfl_sync(unsigned mask, float value, int source, int width = 32);
int __shfl_sync(unsigned mask, int value, int source, int width = 32);
unsigned __shfl_sync(unsigned mask, unsigned value, int source, int width = 32);

inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return twell::emulation::atomic(at, [=](unsigned old) { return old + value; });
}
inline int atomicAdd(int* at, int value) {
  return twell::emulation::atomic(at, [=](int old) { return old + value; });
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return twell::emulation::atomic(at, [=](unsigned long long old) { return old + value; });
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
  return twell::emulation::atomic(at, [=](unsigned old) { return old | value; });
}
inline int atomicMax(int* at, int value) {
  return twell::emulation::atomic(at, [=](int old) { return old > value ? old : value; });
}

// The runtime.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorStreamCaptureUnsupported = 900,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

using cudaStream_t = struct CUstream_st*;
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
// What is enqueued has happened when the call returns: streams have nothing to wait for.
constexpr unsigned cudaStreamNonBlocking = 1;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaGetLastError(); }
// Each record is a millisecond after the one before, whatever was done between: no time of an
// emulation means anything.
using cudaEvent_t = struct CUevent_st*;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, l2CacheSize;
  std::size_t sharedMemPerBlockOptin, totalGlobalMem;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* ordinal);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
enum cudaDeviceAttr {
  cudaDevAttrClockRate,
  cudaDevAttrMemoryClockRate,
  cudaDevAttrGlobalMemoryBusWidth,
};
// Tells nothing, as a driver may.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream);
// Pitches and width in bytes.
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
  int ptxVersion;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function);
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* function);

template <class Args, class Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Args),
                               const Given& args) {
  const cudaError_t status = check_launch(*config, reinterpret_cast<const void*>(kernel));
  if (status != cudaSuccess) return status;
  twell::emulation::launch(config->gridDim, config->blockDim, config->dynamicSmemBytes,
                           [&] { kernel(args); });
  return cudaSuccess;
}

#include "ptx_twins.h"
