// The gate weight as the GEMM kernels read it.
//
// W [H, D] (neurons × inputs, as in checkpoints) is cut into panels of 16 neurons. A bf16 panel
// holds D/2 steps of 16 neurons × 2 consecutive inputs: what one AMX tile row, one vdpbf16ps
// operand, or two shifted AVX2 loads want, so a single layout serves every tier and a GEMV streams
// it in order. An f32 panel holds D steps of 16 neurons. D is padded with zeros to 32 (bf16) or 1
// (f32) inputs, H to 16 neurons.
#pragma once

#include <cstddef>
#include <cstdint>

#include "twell/dtype.h"
#include "twell/tensor_view.h"

namespace twell {

constexpr std::int64_t kPanel = 16;

// Inputs after padding.
constexpr std::int64_t packed_depth(DType dtype, std::int64_t cols) {
  return dtype == DType::f32 ? cols : (cols + 31) / 32 * 32;
}
constexpr std::int64_t packed_panels(std::int64_t rows) { return (rows + kPanel - 1) / kPanel; }
constexpr std::size_t packed_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(packed_panels(rows)) * kPanel *
         static_cast<std::size_t>(packed_depth(dtype, cols)) * size_of(dtype);
}

struct PackedView {
  const void* data = nullptr;  // packed_bytes(dtype, rows, cols), 64-byte aligned
  DType dtype = DType::f32;
  std::int64_t rows = 0;  // H
  std::int64_t cols = 0;  // D
};

// `packed` has packed_bytes(w.dtype, w.rows, w.cols) bytes. bf16 and f32.
void pack_weight(ConstMatrixView w, void* packed);
// The inverse, exact. `w` has the packed weight's dtype and shape.
void unpack_weight(PackedView packed, MatrixView w);

}  // namespace twell
