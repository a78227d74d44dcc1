// Stands in for src/kernels/cpu/amx/tile.h: nothing is multiplied, but the lines that each
// instruction touches go through a model of the caches of a Sapphire Rapids core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/amx/tile_config.h"

namespace twell::amx_model {

// Least recently used lines go.
class Cache {
 public:
  struct Outcome {
    bool hit = false;
    bool writes_back = false;  // a changed line had to go
  };

  Cache(std::int64_t bytes, std::int64_t ways)
      : ways_(ways), sets_(bytes / 64 / ways), lines_(static_cast<std::size_t>(bytes / 64)) {}

  Outcome touch(std::uint64_t line, bool change) {
    Line* const set = lines_.data() + static_cast<std::int64_t>(line % sets_) * ways_;
    Line* oldest = set;
    for (Line* way = set; way < set + ways_; ++way) {
      if (way->used > 0 && way->line == line) {
        way->used = ++clock_;
        way->changed = way->changed || change;
        return {true, false};
      }
      if (way->used < oldest->used) oldest = way;
    }
    const bool writes_back = oldest->used > 0 && oldest->changed;
    *oldest = {line, ++clock_, change};
    return {false, writes_back};
  }

 private:
  struct Line {
    std::uint64_t line = 0, used = 0;
    bool changed = false;
  };
  std::int64_t ways_;
  std::uint64_t sets_, clock_ = 0;
  std::vector<Line> lines_;
};

// What went by.
struct Counts {
  std::int64_t multiplications = 0;  // of tiles
  std::int64_t l2 = 0;               // lines between L1 and L2, either way
  std::int64_t l3 = 0;               // lines that a load had to wait for
  std::int64_t fetched = 0;          // lines brought to L2 ahead of their use
};

class Core {
 public:
  void access(const void* at, bool change) {
    const auto line = reinterpret_cast<std::uintptr_t>(at) / 64;
    const Cache::Outcome first = l1_.touch(line, change);
    if (first.writes_back) ++counts.l2;
    if (first.hit) return;
    ++counts.l2;
    if (!l2_.touch(line, change).hit) ++counts.l3;
  }
  void fetch(const void* at) {
    if (!l2_.touch(reinterpret_cast<std::uintptr_t>(at) / 64, false).hit) ++counts.fetched;
  }
  Counts counts;

 private:
  Cache l1_{48 << 10, 12};
  Cache l2_{2 << 20, 16};
};
inline Core core;

}  // namespace twell::amx_model

namespace twell::amx {
namespace {

inline TileConfig tiles;

inline void load_config(const TileConfig& config) { tiles = config; }
inline void release() {}

inline void access_tile(int tile, const void* base, std::int64_t stride, bool change) {
  const auto* at = static_cast<const char*>(base);
  for (int row = 0; row < tiles.rows[tile]; ++row, at += stride) {
    amx_model::core.access(at, change);
  }
}
template <int T>
void tile_zero() {}
template <int T>
void tile_load(const void* base, std::int64_t stride) {
  access_tile(T, base, stride, false);
}
template <int T>
void tile_store(void* base, std::int64_t stride) {
  access_tile(T, base, stride, true);
}
template <int C, int A, int B>
void tile_dpbf16() {
  ++amx_model::core.counts.multiplications;
}
template <int C, int A, int B>
void tile_dpbusd() {
  ++amx_model::core.counts.multiplications;
}
inline void prefetch_l2(const void* at) { amx_model::core.fetch(at); }

}  // namespace
}  // namespace twell::amx
