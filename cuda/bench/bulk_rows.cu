#include <algorithm>

#include "cuda/bench/bulk_rows.h"
#include "cuda/bench/warp_sum.cuh"
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/ptx/bulk.cuh"
#include "cuda/kernels/ptx/memory.cuh"

namespace twell::bench {
namespace {

namespace ptx = cuda::ptx;

constexpr int kBulkThreads = kBulkWarps * 32;
constexpr int kBarrierBytes = 8;

__global__ void __launch_bounds__(kBulkThreads, 1)
    bulk_rows(const __grid_constant__ BulkRowsArgs args) {
  constexpr int kRowBytes = static_cast<int>(kReadRowBytes);
  constexpr int kVectors = kRowBytes / 16 / 32;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int ring = static_cast<int>(threadIdx.x) / 32;
  const unsigned warp = blockIdx.x * kBulkWarps + static_cast<unsigned>(ring);
  // All rings, then the barriers of all.
  std::byte* rows = ptx::dynamic_shared() + ring * args.slots * kRowBytes;
  const std::uint32_t rows_at = ptx::shared_address(rows);
  const std::uint32_t barriers_at =
      ptx::shared_address(ptx::dynamic_shared()) +
      static_cast<std::uint32_t>(args.slots * (kBulkWarps * kRowBytes + ring * kBarrierBytes));
  const auto barrier_of = [&](int slot) {
    return barriers_at + static_cast<std::uint32_t>(slot * kBarrierBytes);
  };
  // By one lane.
  const auto start = [&](int i, int slot) {
    const auto row =
        static_cast<std::int64_t>(random_row(warp, static_cast<unsigned>(i), args.rows));
    ptx::expect_bytes(barrier_of(slot), kRowBytes);
    ptx::copy_bulk(rows_at + static_cast<std::uint32_t>(slot * kRowBytes),
                   args.data + row * kRowBytes, kRowBytes, barrier_of(slot));
  };
  if (lane == 0) {
    for (int slot = 0; slot < args.slots; ++slot) ptx::init_barrier(barrier_of(slot), 1);
    ptx::publish_barriers();
    for (int slot = 0; slot < min(args.slots, args.rows_per_warp); ++slot) start(slot, slot);
  }
  __syncwarp();
  unsigned sum = 0;
  int slot = 0;
  std::uint32_t parity = 0;
  for (int i = 0; i < args.rows_per_warp; ++i) {
    ptx::wait_barrier(barrier_of(slot), parity);
    const auto* row = reinterpret_cast<const uint4*>(rows + slot * kRowBytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sum += words_of(row[v * 32 + lane]);
    // All lanes have read the row before another takes its place.
    __syncwarp();
    if (lane == 0 && i + args.slots < args.rows_per_warp) start(i + args.slots, slot);
    if (++slot == args.slots) {
      slot = 0;
      parity ^= 1U;
    }
  }
  sum = sum_of_warp(sum);
  if (lane == 0) args.sums[warp] = sum;
}

}  // namespace

bool has_bulk_copies() {
  // As of the wait of programmatic launches: code made from PTX of compute_80 has neither.
  return cuda::waits_for_previous(reinterpret_cast<const void*>(bulk_rows));
}

std::size_t bulk_rows_shared_bytes(int slots, std::size_t most) {
  const auto rings = static_cast<std::size_t>(slots) * kBulkWarps * (kReadRowBytes + kBarrierBytes);
  return std::max(rings, most / 2 + 1024);
}

void launch_bulk_rows(const BulkRowsArgs& args, int blocks, std::size_t shared_bytes,
                      cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(blocks));
  shape.threads = kBulkThreads;
  shape.shared_bytes = shared_bytes;
  shape.stream = stream;
  cuda::launch_kernel(bulk_rows, shape, args);
}

}  // namespace twell::bench
