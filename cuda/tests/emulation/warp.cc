// What lanes of a warp exchange.
#include <cuda_runtime.h>

#include "cuda/tests/emulation/fibers.h"

namespace {

using twell::emulation::bits_of;
using twell::emulation::require;
using twell::emulation::warp_collective;

constexpr unsigned kAll = 0xffffffffU;

int lane_of_thread() { return static_cast<int>(threadIdx.x % 32); }

void require_all(unsigned mask) { require(mask == kAll, "only whole warps are emulated"); }

struct Shuffle {
  unsigned value;
  int source;  // lane
  unsigned result;
};
void combine_shuffle(void* const* lanes) {
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    auto& own = *static_cast<Shuffle*>(lanes[l]);
    require(lanes[own.source] != nullptr, "shuffle from a lane that has ended");
    own.result = static_cast<Shuffle*>(lanes[own.source])->value;
  }
}
template <class T>
T shuffle(unsigned mask, T value, int source) {
  require_all(mask);
  Shuffle own{bits_of<unsigned>(value), source, 0};
  warp_collective("shuffle", &own, combine_shuffle);
  return bits_of<T>(own.result);
}
template <class T>
T shuffle_xor(unsigned mask, T value, int lanes) {
  return shuffle(mask, value, lane_of_thread() ^ lanes);
}
template <class T>
T shuffle_from(unsigned mask, T value, int source, int width) {
  return shuffle(mask, value, lane_of_thread() / width * width + source % width);
}
template <class T>
T shuffle_down(unsigned mask, T value, int distance, int width) {
  const int lane = lane_of_thread();
  return shuffle(mask, value, lane % width + distance < width ? lane + distance : lane);
}

// All lanes get what kChange makes of all their values.
template <unsigned (*kChange)(unsigned sum, unsigned value, int lane)>
unsigned reduce(const char* what, unsigned mask, unsigned value) {
  require_all(mask);
  warp_collective(what, &value, [](void* const* lanes) {
    unsigned sum = 0;
    for (int l = 0; l < 32; ++l) {
      if (lanes[l] != nullptr) sum = kChange(sum, *static_cast<unsigned*>(lanes[l]), l);
    }
    for (int l = 0; l < 32; ++l) {
      if (lanes[l] != nullptr) *static_cast<unsigned*>(lanes[l]) = sum;
    }
  });
  return value;
}
unsigned add(unsigned sum, unsigned value, int) { return sum + value; }
unsigned any(unsigned found, unsigned value, int) { return found | (value != 0 ? 1U : 0U); }
unsigned set_bit(unsigned bits, unsigned value, int lane) {
  return bits | (value != 0 ? 1U << lane : 0U);
}

}  // namespace

void __syncwarp(unsigned mask) {
  require_all(mask);
  twell::emulation::warp_barrier();
}

int __any_sync(unsigned mask, int predicate) {
  return static_cast<int>(reduce<any>("any", mask, static_cast<unsigned>(predicate)));
}
unsigned __ballot_sync(unsigned mask, int predicate) {
  return reduce<set_bit>("ballot", mask, static_cast<unsigned>(predicate));
}
unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return reduce<add>("reduce_add", mask, value);
}
int __reduce_add_sync(unsigned mask, int value) {
  return static_cast<int>(reduce<add>("reduce_add", mask, static_cast<unsigned>(value)));
}

float __shfl_xor_sync(unsigned mask, float value, int lanes) {
  return shuffle_xor(mask, value, lanes);
}
double __shfl_xor_sync(unsigned mask, double value, int lanes) {
  const auto halves = bits_of<uint2>(value);
  const unsigned low = shuffle_xor(mask, halves.x, lanes);
  return bits_of<double>(make_uint2(low, shuffle_xor(mask, halves.y, lanes)));
}
int __shfl_xor_sync(unsigned mask, int value, int lanes) { return shuffle_xor(mask, value, lanes); }
unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lanes) {
  return shuffle_xor(mask, value, lanes);
}
float __shfl_down_sync(unsigned mask, float value, int distance, int width) {
  return shuffle_down(mask, value, distance, width);
}
int __shfl_down_sync(unsigned mask, int value, int distance, int width) {
  return shuffle_down(mask, value, distance, width);
}
unsigned __shfl_down_sync(unsigned mask, unsigned value, int distance, int width) {
  return shuffle_down(mask, value, distance, width);
}
int __shfl_up_sync(unsigned mask, int value, int distance, int width) {
  const int lane = lane_of_thread();
  return shuffle(mask, value, lane % width >= distance ? lane - distance : lane);
}
float __shfl_sync(unsigned mask, float value, int source, int width) {
  return shuffle_from(mask, value, source, width);
}
int __shfl_sync(unsigned mask, int value, int source, int width) {
  return shuffle_from(mask, value, source, width);
}
unsigned __shfl_sync(unsigned mask, unsigned value, int source, int width) {
  return shuffle_from(mask, value, source, width);
}
