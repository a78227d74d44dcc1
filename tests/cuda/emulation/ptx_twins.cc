#include <cuda_runtime.h>

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/cuda/emulation/fibers.h"
#include "tests/cuda/support/half.h"
#include "twell/dtype.h"

namespace {

using twell::emulation::warp_collective;

unsigned lane_of_thread() { return threadIdx.x % 32; }

void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string("emulated GPU: ") + what);
}

bool aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

struct Shuffle {
  std::uint32_t value;
  int source;  // lane
  std::uint32_t result;
};
void combine_shuffle(void* const* lanes) {
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    auto& own = *static_cast<Shuffle*>(lanes[l]);
    require(lanes[own.source] != nullptr, "shuffle from a lane that has ended");
    own.result = static_cast<Shuffle*>(lanes[own.source])->value;
  }
}
std::uint32_t shuffle(unsigned mask, std::uint32_t value, int source) {
  require(mask == 0xffffffffU, "only whole warps are emulated");
  Shuffle own{value, source, 0};
  warp_collective("shuffle", &own, combine_shuffle);
  return own.result;
}

void combine_any(void* const* lanes) {
  bool any = false;
  for (int l = 0; l < 32; ++l) any |= lanes[l] != nullptr && *static_cast<int*>(lanes[l]) != 0;
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] != nullptr) *static_cast<int*>(lanes[l]) = any ? 1 : 0;
  }
}

}  // namespace

int __any_sync(unsigned mask, int predicate) {
  require(mask == 0xffffffffU, "only whole warps are emulated");
  warp_collective("any", &predicate, combine_any);
  return predicate;
}

float __shfl_xor_sync(unsigned mask, float value, int lanes) {
  const int source = static_cast<int>(lane_of_thread()) ^ lanes;
  return std::bit_cast<float>(shuffle(mask, std::bit_cast<std::uint32_t>(value), source));
}

int __shfl_up_sync(unsigned mask, int value, int distance, int width) {
  const int lane = static_cast<int>(lane_of_thread());
  const int source = lane % width >= distance ? lane - distance : lane;
  return static_cast<int>(shuffle(mask, static_cast<std::uint32_t>(value), source));
}

int __shfl_sync(unsigned mask, int value, int source, int width) {
  const int lane = static_cast<int>(lane_of_thread());
  return static_cast<int>(
      shuffle(mask, static_cast<std::uint32_t>(value), lane / width * width + source % width));
}

namespace twell::cuda::ptx {
namespace {

std::byte* shared_at(std::uint32_t address, std::uint32_t bytes) {
  require(address % bytes == 0, "misaligned shared address");
  require(address + bytes <= emulation::shared_bytes(), "shared address out of bounds");
  return emulation::shared_memory() + address;
}

uint4 load_16(const void* from) {
  require(aligned(from, 16), "misaligned 16-byte load");
  uint4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

}  // namespace

std::byte* dynamic_shared() { return emulation::shared_memory(); }

std::uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const std::byte*>(pointer) - emulation::shared_memory();
  require(offset >= 0 && static_cast<std::size_t>(offset) < emulation::shared_bytes(),
          "not a shared address");
  return static_cast<std::uint32_t>(offset);
}

void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  require(bytes == 0 || bytes == 16, "cp.async of other than 0 or 16 bytes");
  require(aligned(from, 16), "misaligned cp.async");
  shared_at(to, 16);
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

uint4 load_shared_row(const void* from) { return load_16(from); }
uint4 load_stream(const void* from) { return load_16(from); }

float4 load_other_block_f4(const float* from) {
  require(aligned(from, 16), "misaligned 16-byte load");
  float4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
void store_f4(float* to, float4 v) {
  require(aligned(to, 16), "misaligned 16-byte store");
  std::memcpy(to, &v, sizeof v);
}
void store_16(void* to, uint4 v) {
  require(aligned(to, 16), "misaligned 16-byte store");
  std::memcpy(to, &v, sizeof v);
}

// Reads, so that AddressSanitizer sees an address out of bounds.
void prefetch_l2(const void* from) { (void)*static_cast<const volatile char*>(from); }

void store_shared_16(std::uint32_t to, uint4 v) { std::memcpy(shared_at(to, 16), &v, sizeof v); }

namespace {

struct Ldmatrix {
  std::uint32_t address;
  std::uint32_t result[4];
};
void combine_ldmatrix(void* const* lanes) {
  for (int l = 0; l < 32; ++l) require(lanes[l] != nullptr, "ldmatrix without all lanes");
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i) {
      // Element pair l % 4 of row l / 4 of matrix i, whose address lane i * 8 + l / 4 gives.
      const auto& row = *static_cast<Ldmatrix*>(lanes[i * 8 + l / 4]);
      std::memcpy(&static_cast<Ldmatrix*>(lanes[l])->result[i],
                  shared_at(row.address, 16) + l % 4 * 4, 4);
    }
  }
}

struct Mma {
  float c[4];
  std::uint32_t a[4];
  std::uint32_t b[2];
};
float low_bf16(std::uint32_t word) { return std::bit_cast<float>(word << 16); }
float high_bf16(std::uint32_t word) { return std::bit_cast<float>(word & 0xffff0000U); }
float low_f16(std::uint32_t word) { return test::widen_half(static_cast<std::uint16_t>(word)); }
float high_f16(std::uint32_t word) {
  return test::widen_half(static_cast<std::uint16_t>(word >> 16));
}

template <float (*kLow)(std::uint32_t), float (*kHigh)(std::uint32_t)>
void combine_mma(void* const* lanes) {
  float a[16][16];
  float b[16][8];
  for (int l = 0; l < 32; ++l) {
    require(lanes[l] != nullptr, "mma without all lanes");
    const auto& own = *static_cast<Mma*>(lanes[l]);
    const int g = l / 4;
    const int t = l % 4;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][2 * t + i / 2 * 8] = kLow(own.a[i]);
      a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = kHigh(own.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = kLow(own.b[i]);
      b[2 * t + i * 8 + 1][g] = kHigh(own.b[i]);
    }
  }
  for (int l = 0; l < 32; ++l) {
    auto& own = *static_cast<Mma*>(lanes[l]);
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8;
      const int col = l % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) own.c[i] += a[row][k] * b[k][col];
    }
  }
}

template <float (*kLow)(std::uint32_t), float (*kHigh)(std::uint32_t)>
void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  Mma own{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulation::warp_collective("mma", &own, combine_mma<kLow, kHigh>);
  std::memcpy(c, own.c, sizeof c);
}

}  // namespace

void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address) {
  Ldmatrix own{address, {}};
  emulation::warp_collective("ldmatrix", &own, combine_ldmatrix);
  std::memcpy(to, own.result, sizeof to);
}

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma<low_bf16, high_bf16>(c, a, b0, b1);
}
void mma_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma<low_f16, high_f16>(c, a, b0, b1);
}

std::uint32_t round_bf16x2(float low, float high) {
  return static_cast<std::uint32_t>(bf16(low).bits) | static_cast<std::uint32_t>(bf16(high).bits)
                                                          << 16;
}
std::uint32_t round_f16x2(float low, float high) {
  return static_cast<std::uint32_t>(test::round_half(low)) |
         static_cast<std::uint32_t>(test::round_half(high)) << 16;
}
float widen_f16(std::uint16_t bits) { return test::widen_half(bits); }

}  // namespace twell::cuda::ptx
