// A weight as the GEMM kernels read it.
//
// W [rows, cols] (neurons × inputs, as in checkpoints) is cut into panels of 16 neurons. A bf16
// panel holds cols / 2 steps of 16 neurons × 2 consecutive inputs. A step is a row of an AMX tile,
// an operand of vdpbf16ps, or two shifted AVX2 loads, so a single layout serves every tier and a
// product with one token streams it in order. An f32 panel holds `cols` steps of 16 neurons. Inputs
// are padded with zeros to a multiple of 32 (bf16) or not at all (f32), neurons to 16.
//
// int8 is in panels of blocks of 256 inputs, as in a screen (twell/screen.h). A block starts with
// −Σ of its codes of each neuron (16 int32); steps of 16 neurons × 4 inputs follow. The scales of
// the neurons, f32 and padded with zeros to whole panels, follow the last panel.
//
// int4 is, too. A block starts with the scales of its 8 groups of 32 inputs (8 × 16 bytes). For
// each group four lines of 16 neurons × 4 bytes follow: byte b of line j holds input 8 j + b in its
// low half and 8 j + 4 + b in the high one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "twell/tensor_view.h"
#include "twell/weight.h"

#pragma GCC visibility push(default)
namespace twell {

class Context;

constexpr std::int64_t kPanel = 16;

// Inputs of codes in a block, and the number of inputs whose room its sums take.
constexpr std::int64_t kCodeBlock = 256;
constexpr std::int64_t kCodeHead = 4;
constexpr std::int64_t code_blocks(std::int64_t cols) {
  return (cols + kCodeBlock - 1) / kCodeBlock;
}
// Inputs that codes have room for.
constexpr std::int64_t code_depth(std::int64_t cols) { return (cols + 63) / 64 * 64; }
constexpr std::int64_t code_panel_bytes(std::int64_t cols) {
  return kPanel * (code_depth(cols) + kCodeHead * code_blocks(cols));
}
// Bytes at the start of a block of int4.
constexpr std::int64_t kInt4Head = kPanel * traits_of(WeightType::int4).head;

// Inputs after padding, which is how many x must have.
constexpr std::int64_t packed_depth(WeightType type, std::int64_t cols) {
  return type == WeightType::f32 ? cols : (cols + 31) / 32 * 32;
}
constexpr std::int64_t packed_panels(std::int64_t rows) { return (rows + kPanel - 1) / kPanel; }
constexpr std::int64_t panel_bytes(WeightType type, std::int64_t cols) {
  const WeightTraits is = traits_of(type);
  const std::int64_t inputs = (cols + is.unit - 1) / is.unit * is.unit;
  return kPanel * (inputs * is.bits / 8 + is.head * code_blocks(cols));
}
constexpr std::size_t packed_bytes(WeightType type, std::int64_t rows, std::int64_t cols) {
  const std::int64_t scales = has_scales(type) ? kPanel * 4 : 0;
  return static_cast<std::size_t>(packed_panels(rows) * (panel_bytes(type, cols) + scales));
}
// Panels that pack_weight() wrote at `data`.
WeightView packed_view(const void* data, WeightType type, std::int64_t rows, std::int64_t cols);

// The shape of a packed weight as one tensor that says what it is: [rows, n, 1] of its elements.
// The third dimension tells it from a weight of rows. n is `cols` if packing adds nothing. Else it
// is large enough for everything, and differs for all `cols` that are padded to the same depth.
constexpr std::int64_t packed_extent(WeightType type, std::int64_t rows, std::int64_t cols) {
  const std::int64_t there = rows > 1 ? rows : 1, unit = traits_of(type).unit;
  const auto bytes = static_cast<std::int64_t>(packed_bytes(type, there, cols));
  const std::int64_t row = there * element_bytes(type);
  return (bytes + row - 1) / row + (cols + unit - 1) / unit * unit - cols;
}
// The inverse: `cols` of a tensor [rows, n, 1]; -1 if no packed weight has this n.
constexpr std::int64_t packed_cols(WeightType type, std::int64_t rows, std::int64_t n) {
  const std::int64_t there = rows > 1 ? rows : 1, padded = packed_panels(there) * kPanel;
  const std::int64_t unit = traits_of(type).unit;
  // At most; heads and scales are left out.
  std::int64_t depth = n * there / padded;
  if (has_scales(type)) {
    const std::int64_t block = panel_bytes(type, kCodeBlock) / kPanel;
    depth = (depth - 4) / block * kCodeBlock + kCodeBlock;
  }
  depth = depth / unit * unit;
  while (depth > 0 && packed_extent(type, rows, depth) > n) depth -= unit;
  const std::int64_t cols = depth - (n - packed_extent(type, rows, depth));
  const bool whole = !in_blocks(type) || cols % kInt4Group == 0;
  return cols >= 0 && whole && packed_extent(type, rows, cols) == n ? cols : -1;
}

// Memory for a prepared weight, which copies share and the last one frees. It is at a multiple of
// 64 bytes, since kernels read whole cache lines. From 2 MB on it is in huge pages if the system
// gives them, because weights are gathered row by row and each 4 kB row of a 2048-wide bf16 layer
// would otherwise cost a TLB entry. Up to 64 MB of freed memory is kept for the next of the same
// size. A caller's own memory may be at any multiple of 4, with the same result, but then every
// load crosses two lines.
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

// Writes packed_bytes(w.type, w.rows, w.cols) bytes to `packed`, at a multiple of 4, best of 64. w
// is rows of any type but f16; its scales, if any, are of rows. The threads or the executor of
// `context`, here and below, do the work; null: OpenMP's threads do.
void pack_weight(const WeightView& w, void* packed, const Context* context = nullptr);
// The exact inverse: turns `panels` as pack_weight() wrote them into a matrix of their type and
// shape. Codes are refused, because their numbers need not be f32.
void unpack_weight(const WeightView& panels, MatrixView w, const Context* context = nullptr);

// A packed weight that owns its memory. It is a value, and copies share its memory.
class PackedWeight {
 public:
  // Packs w as pack_weight() does.
  explicit PackedWeight(const WeightView& w, const Context* context = nullptr);

  // The panels, which live as long as this object or a copy of it.
  const WeightView& view() const { return view_; }

 private:
  PreparedMemory memory_;
  WeightView view_;
};

}  // namespace twell
#pragma GCC visibility pop
