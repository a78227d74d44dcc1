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

#include "twell/tensor_view.h"
#include "twell/weight.h"

namespace twell {

constexpr std::int64_t kPanel = 16;

// Inputs after padding.
constexpr std::int64_t packed_depth(WeightType type, std::int64_t cols) {
  return type == WeightType::f32 ? cols : (cols + 31) / 32 * 32;
}
constexpr std::int64_t packed_panels(std::int64_t rows) { return (rows + kPanel - 1) / kPanel; }
constexpr std::size_t packed_bytes(WeightType type, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(
      bytes_of(type, packed_panels(rows) * kPanel * packed_depth(type, cols)));
}

// A packed weight that has to say what it is, as one tensor: [rows, n, 1] of its type. The third
// dimension tells it from a weight of rows. n is `cols` where packing pads nothing; else so large
// that the padding fits in, and tells `cols` apart from all others that pad to the same depth.
constexpr std::int64_t packed_extent(WeightType type, std::int64_t rows, std::int64_t cols) {
  const std::int64_t there = rows > 1 ? rows : 1, padded = packed_panels(there) * kPanel;
  const std::int64_t depth = packed_depth(type, cols);
  return (padded * depth + there - 1) / there + depth - cols;
}
// The inverse: `cols` of a tensor [rows, n, 1]; -1 where packing makes none of this n.
constexpr std::int64_t packed_cols(WeightType type, std::int64_t rows, std::int64_t n) {
  const std::int64_t there = rows > 1 ? rows : 1, padded = packed_panels(there) * kPanel;
  const std::int64_t unit = packed_depth(type, 1);
  const std::int64_t depth = n * there / (padded * unit) * unit;
  const std::int64_t cols = depth - (n - packed_extent(type, rows, depth));
  return cols >= 0 && packed_extent(type, rows, cols) == n ? cols : -1;
}

// Memory for a prepared weight, which copies share and the last one frees. It is at a multiple of
// 64 bytes, since kernels read whole cache lines, and from 2 MB on in huge pages where the system
// gives them: weights are gathered row by row, and a 4 kB row of a 2048-wide bf16 layer would
// otherwise cost a TLB entry of its own. A caller's own memory may be at any multiple of 4, with
// the same result, but then every load crosses two lines.
class PreparedMemory {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kElement = 4;

  PreparedMemory() = default;
  // Uninitialised. Throws Error{out_of_memory}.
  explicit PreparedMemory(std::size_t bytes);

  const void* data() const { return data_.get(); }
  void* mutable_data() { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> data_;
  std::size_t bytes_ = 0;
};

// `packed`: packed_bytes(w.type, w.rows, w.cols) bytes at a multiple of 4, best of 64. w: rows of
// bf16 or f32.
void pack_weight(const WeightView& w, void* packed);
// The inverse, exact, of `panels` as pack_weight() wrote them, into a matrix of their type and
// shape.
void unpack_weight(const WeightView& panels, MatrixView w);

// A packed weight that owns its memory. A value; copies share it.
class PackedWeight {
 public:
  // As pack_weight() packs w, on all threads. w: rows of bf16 or f32.
  explicit PackedWeight(const WeightView& w);

  // Panels, which live as long as this or a copy of it.
  const WeightView& view() const { return view_; }

 private:
  PreparedMemory memory_;
  WeightView view_;
};

}  // namespace twell
