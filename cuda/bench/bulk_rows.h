// Rows of 4 KB in random order, each brought into shared memory by one instruction (cp.async.bulk):
// what a gather could read by, measured before one is written.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/bench/bench_kernels.h"

namespace twell::bench {

inline constexpr int kBulkWarps = 8;  // of a block; an SM holds one block

// Each warp reads rows random_row(warp, 0 … rows_per_warp − 1, rows) through a ring of its own and
// leaves the sum of their 32-bit words.
struct BulkRowsArgs {
  const std::byte* data = nullptr;
  std::uint32_t rows = 0;
  int rows_per_warp = 0;
  int slots = 0;             // of a warp's ring: rows of a block's ring / kBulkWarps
  unsigned* sums = nullptr;  // [warps]
};

// Whether this GPU's code of the kernel has the instruction: sm_90 and up.
bool has_bulk_copies();
// What a block takes. At least so much that an SM holds one block: `most` is what one may use, and
// an SM has about as much.
std::size_t bulk_rows_shared_bytes(int slots, std::size_t most);
void launch_bulk_rows(const BulkRowsArgs& args, int blocks, std::size_t shared_bytes,
                      cudaStream_t stream);

}  // namespace twell::bench
