// Twins of cuda/kernels/ptx/memory.cuh.
#include <cuda_runtime.h>

#include <cstring>

#include "cuda/tests/emulation/fibers.h"

#define TWELL_COUNT(at, bytes) emulation::count_access({__func__, file, line}, at, bytes)

namespace twell::emulation {

std::byte* shared_at(std::uint32_t address, std::uint32_t bytes) {
  require(address % bytes == 0, "misaligned shared address");
  require(address + bytes <= shared_bytes(), "shared address out of bounds");
  return shared_memory() + address;
}

}  // namespace twell::emulation

namespace twell::cuda::ptx {
namespace {

using emulation::require;
using emulation::shared_at;

bool aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

uint4 load_16(const void* from) {
  require(aligned(from, 16), "misaligned 16-byte load");
  uint4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
T load_from_other_block(const float* from) {
  require(aligned(from, sizeof(T)), "misaligned load");
  T v;
  emulation::read_other_block(&v, from, sizeof v);
  return v;
}

template <class T>
void store(void* to, const T& v) {
  require(aligned(to, sizeof v), "misaligned 16-byte store");
  std::memcpy(to, &v, sizeof v);
}

}  // namespace

std::byte* dynamic_shared() { return emulation::shared_memory(); }

std::uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const std::byte*>(pointer) - emulation::shared_memory();
  require(offset >= 0 && static_cast<std::size_t>(offset) < emulation::shared_bytes(),
          "not a shared address");
  return static_cast<std::uint32_t>(offset);
}

void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes, const char* file,
                 int line) {
  require(bytes == 0 || bytes == 16, "cp.async of other than 0 or 16 bytes");
  require(aligned(from, 16), "misaligned cp.async");
  shared_at(to, 16);
  TWELL_COUNT(bytes == 0 ? nullptr : from, 16);
  emulation::copies().back().push_back({to, from, bytes});
}

void cp_async_commit() { emulation::copies().emplace_back(); }

void cp_async_wait_pending(int pending) {
  auto& groups = emulation::copies();
  // The last group is open: it does not count.
  while (static_cast<int>(groups.size()) - 1 > pending) {
    for (const emulation::Copy& copy : groups.front()) {
      std::byte* to = shared_at(copy.to, 16);
      std::memset(to, 0, 16);
      std::memcpy(to, copy.from, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

uint4 load_shared_row(const void* from, const char* file, int line) {
  TWELL_COUNT(from, 16);
  return load_16(from);
}
float4 load_shared_row_f4(const float* from, const char* file, int line) {
  TWELL_COUNT(from, 16);
  const uint4 v = load_16(from);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                     __uint_as_float(v.w));
}
uint4 load_stream(const void* from, const char* file, int line) {
  TWELL_COUNT(from, 16);
  return load_16(from);
}

float load_other_block(const float* from, const char* file, int line) {
  TWELL_COUNT(from, 4);
  return load_from_other_block<float>(from);
}
float4 load_other_block_f4(const float* from, const char* file, int line) {
  TWELL_COUNT(from, 16);
  return load_from_other_block<float4>(from);
}

// Reads, so that AddressSanitizer sees an address out of bounds.
void prefetch_l2(const void* from) { (void)*static_cast<const volatile char*>(from); }

void store_16(void* to, uint4 v, const char* file, int line) {
  TWELL_COUNT(to, 16);
  store(to, v);
}
void store_f4(float* to, float4 v, const char* file, int line) {
  TWELL_COUNT(to, 16);
  store(to, v);
}

void store_shared_16(std::uint32_t to, uint4 v) { std::memcpy(shared_at(to, 16), &v, sizeof v); }

}  // namespace twell::cuda::ptx
