#include "cuda/bench/bench_kernels.h"
#include "cuda/bench/launch_shapes.h"
#include "cuda/bench/warp_sum.cuh"
#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/kernels.h"

namespace twell::bench {
namespace {

namespace ptx = cuda::ptx;
using cuda::Bf16;

__device__ __forceinline__ float relu_product(float v, float u) {
  return combine(cuda::kPlainUp, up_activated(Activation::relu, v), u);
}
__device__ __forceinline__ std::uint32_t relu_times2(std::uint32_t gate, std::uint32_t up) {
  return Bf16::round2(relu_product(Bf16::low(gate), Bf16::low(up)),
                      relu_product(Bf16::high(gate), Bf16::high(up)));
}

__global__ void relu_times(const __grid_constant__ ReluTimesArgs args) {
  const int n = (static_cast<int>(blockIdx.x) * kElementThreads + static_cast<int>(threadIdx.x)) *
                cuda::kVector;
  if (n >= args.neurons) return;
  for (std::int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const std::uint16_t* from = args.gate_up + row * 2 * args.neurons + n;
    const uint4 g = *reinterpret_cast<const uint4*>(from);
    const uint4 u = *reinterpret_cast<const uint4*>(from + args.neurons);
    *reinterpret_cast<uint4*>(args.hidden_state + row * args.neurons + n) = make_uint4(
        relu_times2(g.x, u.x), relu_times2(g.y, u.y), relu_times2(g.z, u.z), relu_times2(g.w, u.w));
  }
}

// One atomic addition a warp: one a thread would take as long as the reading.
__device__ __forceinline__ void add_of_warp(unsigned* to, unsigned value) {
  value = sum_of_warp(value);
  if (threadIdx.x % 32 == 0) atomicAdd(to, value);
}

constexpr int kReadAllThreads = 256;

// Four loads of a thread before its first store: an SM's 2,048 threads have 128 KB under way, and
// 3.35 TB/s for 700 ns are 18 KB an SM.
__global__ void copy_all(const __grid_constant__ CopyAllArgs args) {
  constexpr int kUnroll = 4;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kReadAllThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kReadAllThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < args.vectors; i += kUnroll * stride) {
    uint4 read[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) read[j] = ptx::load_stream(args.from + i + j * stride);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) ptx::store_16(args.to + i + j * stride, read[j]);
  }
  for (; i < args.vectors; i += stride) ptx::store_16(args.to + i, ptx::load_stream(args.from + i));
}

__global__ void read_all(const __grid_constant__ ReadAllArgs args) {
  constexpr int kUnroll = 4;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kReadAllThreads;
  unsigned sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kReadAllThreads + threadIdx.x;
       i < args.vectors; i += kUnroll * stride) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      if (i + j * stride < args.vectors) sum += words_of(args.data[i + j * stride]);
    }
  }
  add_of_warp(args.sum, sum);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 2 * kReadThreads / kThreads)
    read_rows(const __grid_constant__ ReadRowsArgs args) {
  constexpr int kElements = static_cast<int>(kReadRowBytes / 2);
  constexpr int kVectors = kElements / cuda::kVector / 32;  // of a lane: 8, all in flight
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  unsigned sum = 0;
  for (int i = 0; i < args.rows_per_warp; ++i) {
    const std::uint16_t* row = args.data + static_cast<std::int64_t>(random_row(
                                               warp, static_cast<unsigned>(i), args.rows)) *
                                               kElements;
    uint4 read[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      read[v] = ptx::load_shared_row(row + (v * 32 + lane) * cuda::kVector);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sum += words_of(read[v]);
  }
  add_of_warp(args.sum, sum);
}

__global__ void empty(int /*unused*/) {}

cuda::LaunchShape shape_of(Grid grid, int threads, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid = dim3(grid.x, grid.y);
  shape.threads = threads;
  shape.stream = stream;
  return shape;
}

}  // namespace

void launch_relu_times(const ReluTimesArgs& args, cudaStream_t stream) {
  cuda::launch_kernel(relu_times,
                      shape_of(relu_times_grid(args.rows, args.neurons), kElementThreads, stream),
                      args);
}

void launch_read_all(const ReadAllArgs& args, int blocks, cudaStream_t stream) {
  cuda::launch_kernel(read_all,
                      shape_of({static_cast<unsigned>(blocks), 1}, kReadAllThreads, stream), args);
}

void launch_copy_all(const CopyAllArgs& args, int blocks, cudaStream_t stream) {
  cuda::launch_kernel(copy_all,
                      shape_of({static_cast<unsigned>(blocks), 1}, kReadAllThreads, stream), args);
}

void launch_read_rows(const ReadRowsArgs& args, int blocks, cudaStream_t stream) {
  cuda::launch_kernel(read_rows<kReadThreads>,
                      shape_of({static_cast<unsigned>(blocks), 1}, kReadThreads, stream), args);
}

void launch_read_rows_by_sm(const ReadRowsArgs& args, int sms, cudaStream_t stream) {
  constexpr int kThreads = 2 * kReadThreads;
  cuda::launch_kernel(read_rows<kThreads>,
                      shape_of({static_cast<unsigned>(sms), 1}, kThreads, stream), args);
}

void launch_empty(cudaStream_t stream) {
  cuda::launch_kernel(empty, shape_of({1, 1}, 32, stream), 0);
}

}  // namespace twell::bench
