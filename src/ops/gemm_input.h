// x of a GEMM as its kernel reads it.
#pragma once

#include "kernels/kernel.h"

namespace twell {

struct GemmInput {
  ConstMatrixView x;  // [rows, D]
  XLayout layout;     // the kernel's
  WeightType weight = weight_type(x.dtype);

  // Whether the kernel reads x where it lies.
  bool in_place() const;
  // Bytes that prepare() fills where it does not.
  std::size_t prepared_bytes() const;
  // Brings rows [begin, end) into the kernel's layout.
  void prepare(std::int64_t begin, std::int64_t end, void* prepared) const;
  // Rows [begin, end), to be completed with weight, panels and c. In TileOrder `begin` is a
  // multiple of 16.
  GemmArgs args(const void* prepared, std::int64_t begin, std::int64_t end) const;

 private:
  bool in_tiles() const { return layout.in_tiles(x.rows); }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(layout.dtype)); }
  std::int64_t depth() const { return packed_depth(weight, x.cols); }
};

}  // namespace twell
