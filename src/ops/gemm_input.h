// x of a GEMM in the form that its kernel reads.
#pragma once

#include "kernels/kernel.h"

namespace twell {

// Rows of one pass of the GEMM over `rows`: 256 inputs of each (512 bytes in bf16) and a column
// block of accumulators (1 KiB) share three quarters of L2 with the panels that stream through: 512
// rows for 1 MiB. Every weight is read, and every hot neuron packed, once a pass: against 192 rows,
// 512 save 7 % of the time at M = 512.
std::int64_t row_block(std::int64_t rows);

struct GemmInput {
  ConstMatrixView x;  // [rows, D]
  PackedView weight;
  XForm form;  // the kernel's

  // Bytes that prepare() fills, 0 where the kernel reads x in place.
  std::size_t prepared_bytes() const;
  // Brings rows [begin, end) into the kernel's form.
  void prepare(std::int64_t begin, std::int64_t end, void* prepared) const;
  // Rows [begin, end) against the weight, to be completed with panels and c.
  GemmArgs args(const void* prepared, std::int64_t begin, std::int64_t end) const;

 private:
  bool in_place() const;
  std::int64_t depth() const { return packed_depth(weight.dtype, weight.cols); }
  std::int64_t stride() const { return form.stride(depth(), x.rows); }  // of prepared rows
};

}  // namespace twell
