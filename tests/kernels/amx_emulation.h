// The AMX tile instructions in plain C++: host twins of src/kernels/cpu/amx/tile.h. Test tool only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/amx/tile_config.h"
#include "twell/dtype.h"

namespace twell::amx {
namespace {

struct EmulatedTiles {
  TileConfig config;
  bool configured = false;
  alignas(64) std::byte data[8][16][64];
};
thread_local EmulatedTiles tiles;

// What the processor answers with a general-protection fault.
inline void fault_unless(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "AMX emulation: %s\n", what);
    std::abort();
  }
}

inline void load_config(const TileConfig& config) {
  fault_unless(config.palette == 1, "palette must be 1");
  for (int t = 0; t < 8; ++t) {
    fault_unless(config.rows[t] <= 16 && config.row_bytes[t] <= 64, "tile larger than 16 x 64");
    fault_unless((config.rows[t] == 0) == (config.row_bytes[t] == 0), "half-configured tile");
  }
  tiles.config = config;
  tiles.configured = true;
  std::memset(tiles.data, 0, sizeof tiles.data);
}
inline void release() { tiles.configured = false; }

template <int T>
int rows_of() {
  fault_unless(tiles.configured && tiles.config.rows[T] > 0, "tile used but not configured");
  return tiles.config.rows[T];
}

template <int T>
void tile_zero() {
  rows_of<T>();
  std::memset(tiles.data[T], 0, sizeof tiles.data[T]);
}
template <int T>
void tile_load(const void* base, std::int64_t stride_bytes) {
  for (int r = 0; r < rows_of<T>(); ++r) {
    std::memcpy(tiles.data[T][r], static_cast<const std::byte*>(base) + r * stride_bytes,
                tiles.config.row_bytes[T]);
  }
}
template <int T>
void tile_store(void* base, std::int64_t stride_bytes) {
  for (int r = 0; r < rows_of<T>(); ++r) {
    std::memcpy(static_cast<std::byte*>(base) + r * stride_bytes, tiles.data[T][r],
                tiles.config.row_bytes[T]);
  }
}
template <int C, int A, int B>
void tile_dpbf16() {
  fault_unless(rows_of<C>() == rows_of<A>() && rows_of<B>() == 16, "shapes do not match");
  for (int r = 0; r < rows_of<C>(); ++r) {
    float c[16];
    bf16 a[32];
    std::memcpy(c, tiles.data[C][r], 64);
    std::memcpy(a, tiles.data[A][r], 64);
    for (int k = 0; k < 16; ++k) {
      bf16 b[32];
      std::memcpy(b, tiles.data[B][k], 64);
      for (int n = 0; n < 16; ++n) {
        c[n] += static_cast<float>(a[2 * k]) * static_cast<float>(b[2 * n]);
        c[n] += static_cast<float>(a[2 * k + 1]) * static_cast<float>(b[2 * n + 1]);
      }
    }
    std::memcpy(tiles.data[C][r], c, 64);
  }
}
template <int C, int A, int B>
void tile_dpbusd() {
  fault_unless(rows_of<C>() == rows_of<A>() && rows_of<B>() == 16, "shapes do not match");
  for (int r = 0; r < rows_of<C>(); ++r) {
    std::uint32_t c[16];  // wraps around, as the processor's do
    std::uint8_t a[64];
    std::memcpy(c, tiles.data[C][r], 64);
    std::memcpy(a, tiles.data[A][r], 64);
    for (int k = 0; k < 16; ++k) {
      std::int8_t b[64];
      std::memcpy(b, tiles.data[B][k], 64);
      for (int n = 0; n < 16; ++n) {
        for (int i = 0; i < 4; ++i) c[n] += static_cast<std::uint32_t>(a[4 * k + i] * b[4 * n + i]);
      }
    }
    std::memcpy(tiles.data[C][r], c, 64);
  }
}

inline void prefetch_l2(const void*) {}

}  // namespace
}  // namespace twell::amx
