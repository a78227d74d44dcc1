// x of a GEMM in the dtype and depth that its kernel reads.
#pragma once

#include "kernels/kernel.h"

namespace twell {

// Rows of one pass: 256 inputs of them (96 KiB in bf16) and a column block of their accumulators
// (196 KiB) share an L2 of 1 to 2 MiB with the panels that stream through.
constexpr std::int64_t kRowBlock = 192;

struct GemmInput {
  ConstMatrixView x;  // [rows, D]
  PackedView weight;
  DType x_dtype;  // the kernel's

  // Bytes that prepare() fills, 0 where the kernel reads x in place.
  std::size_t prepared_bytes() const;
  // Converts rows [begin, end) to the kernel's dtype and the packed depth.
  void prepare(std::int64_t begin, std::int64_t end, void* prepared) const;
  // Rows [begin, end) against the weight, to be completed with panels and c.
  GemmArgs args(const void* prepared, std::int64_t begin, std::int64_t end) const;

 private:
  std::int64_t depth() const { return packed_depth(weight.dtype, weight.cols); }
};

}  // namespace twell
