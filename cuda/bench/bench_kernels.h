// The benchmark's own kernels: the dense layer's elementwise step, and what measures the GPU
// itself. Launchers only enqueue.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/raster.h"

namespace twell::bench {

// hidden_state [rows, neurons] = relu(gate) ⊙ up of gate_up [rows, 2 neurons], in bf16. NaN stays.
struct ReluTimesArgs {
  const std::uint16_t* gate_up = nullptr;
  std::uint16_t* hidden_state = nullptr;
  std::int64_t rows = 0;
  int neurons = 0;  // a multiple of 8
};
void launch_relu_times(const ReluTimesArgs& args, cudaStream_t stream);

// Adds all 32-bit words of `vectors` × 16 bytes into *sum.
struct ReadAllArgs {
  const uint4* data = nullptr;
  std::int64_t vectors = 0;
  unsigned* sum = nullptr;
};
void launch_read_all(const ReadAllArgs& args, int blocks, cudaStream_t stream);

// Copies `vectors` × 16 bytes.
struct CopyAllArgs {
  const uint4* from = nullptr;
  uint4* to = nullptr;
  std::int64_t vectors = 0;
};
void launch_copy_all(const CopyAllArgs& args, int blocks, cudaStream_t stream);

// Reads rows of 4 KB in random order, by the gather's own loads: each warp `rows_per_warp` of
// `rows`. Adds their words into *sum.
inline constexpr std::size_t kReadRowBytes = 4096;
inline constexpr int kReadThreads = 512;  // two blocks an SM
inline constexpr int kReadWarps = kReadThreads / 32;
struct ReadRowsArgs {
  const std::uint16_t* data = nullptr;
  std::uint32_t rows = 0;
  int rows_per_warp = 0;
  unsigned* sum = nullptr;
};
void launch_read_rows(const ReadRowsArgs& args, int blocks, cudaStream_t stream);
// The same by blocks of twice as many warps, of which an SM holds one: so many blocks, so many SMs.
void launch_read_rows_by_sm(const ReadRowsArgs& args, int sms, cudaStream_t stream);

// The i-th row that a warp reads: a counter, mixed as splitmix64 does, scaled by its high half.
constexpr TWELL_HOST_DEVICE std::uint32_t random_row(std::uint32_t warp, std::uint32_t i,
                                                     std::uint32_t rows) {
  std::uint64_t state = (static_cast<std::uint64_t>(warp) << 32 | i) * 0x9e3779b97f4a7c15ULL;
  state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ state >> 27) * 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>((state >> 32) * rows >> 32);
}

void launch_empty(cudaStream_t stream);

}  // namespace twell::bench
