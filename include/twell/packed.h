// A weight as the GEMM kernels read it.
//
// W [rows, cols] (neurons × inputs, as in checkpoints) is cut into panels of 16 neurons. A bf16
// panel holds cols / 2 steps of 16 neurons × 2 consecutive inputs: what one AMX tile row, one
// vdpbf16ps operand, or two shifted AVX2 loads want, so a single layout serves every tier and a
// product with one token streams it in order. An f32 panel holds `cols` steps of 16 neurons. Inputs
// are padded with zeros to a multiple of 32 (bf16) or not at all (f32), neurons to 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

// Memory that a weight was prepared in: its own, which copies share and the last one frees, or the
// caller's. Its own is at a multiple of 64 bytes, since kernels read whole cache lines, and from
// 2 MB on in huge pages where the system gives them: weights are gathered row by row, and a 4 kB
// row of a 2048-wide bf16 layer would otherwise cost a TLB entry of its own. The caller's may be at
// any multiple of 4, with the same result, but then every load crosses two lines.
class PreparedMemory {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kElement = 4;

  PreparedMemory() = default;
  // Uninitialised. Throws Error{out_of_memory}.
  explicit PreparedMemory(std::size_t bytes);
  // The caller's, which outlives this and its copies. Throws Error naming `operation` where it is
  // null or no multiple of 4.
  static PreparedMemory borrow(const void* data, const char* operation);

  const void* data() const { return data_; }
  void* mutable_data() { return owned_.get(); }  // null where borrowed
  std::size_t bytes() const { return bytes_; }   // that it owns

 private:
  std::shared_ptr<void> owned_;
  const void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// `packed`: packed_bytes(w.dtype, w.rows, w.cols) bytes at a multiple of 4, best of 64. bf16
// and f32.
void pack_weight(ConstMatrixView w, void* packed);

// W packed: as PackedWeight(w) makes it, or as pack_weight() wrote it elsewhere. A value; copies
// share the memory.
class PackedWeight {
 public:
  // Packs w on all threads. w is bf16 or f32.
  explicit PackedWeight(ConstMatrixView w);
  static PackedWeight borrow(const void* packed, DType dtype, std::int64_t rows, std::int64_t cols);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const void* data() const { return memory_.data(); }
  // The inverse, exact, into a matrix of this dtype and shape.
  void unpack(MatrixView w) const;

 private:
  PackedWeight(PreparedMemory memory, DType dtype, std::int64_t rows, std::int64_t cols);

  PreparedMemory memory_;
  DType dtype_;
  std::int64_t rows_, cols_;
};

}  // namespace twell
