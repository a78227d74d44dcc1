// TwELL: tile-wise ELLPACK, the packed form of a sparse activation [M, H] (paper section 3).
//
// The columns are cut into tiles of `tile` columns. Each row of a tile has a count of non-zeros,
// and room for `capacity` slots. A slot is a pair (column within the tile, value); slots are in
// ascending order of columns. If a tile has more non-zeros than `capacity`, its count stays true,
// and all of its slots are in an overflow record of `tile` slots. The record's number is in the
// tile's first inline word. So every matrix is held exactly, at any density. docs/format.md has a
// picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "twell/dtype.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// Slot of a 16-bit value: one 32-bit word, with the column in the low half and the value's bits in
// the high half. So the word with its low half cleared is the bf16 value as f32.
struct TwellSlot16 {
  std::uint16_t column;
  std::uint16_t bits;
};
// Slot of an f32 value.
struct TwellSlot32 {
  std::uint32_t column;
  float value;
};
static_assert(sizeof(TwellSlot16) == 4 && sizeof(TwellSlot32) == 8);

// Bytes of a slot.
constexpr std::size_t slot_bytes(DType dtype) { return dtype == DType::f32 ? 8 : 4; }

// Columns of the widest tile: a slot numbers them in 16 bits.
constexpr std::int32_t kWidestTile = 65536;

// Shape and tiling of a TwELL matrix.
struct TwellLayout {
  std::int64_t rows = 0;       // M
  std::int64_t cols = 0;       // H
  std::int32_t tile = 256;     // columns per tile: a multiple of 16, at most kWidestTile
  std::int32_t capacity = 32;  // inline slots per row and tile, 1 … tile
  DType dtype = DType::bf16;   // of the values

  std::int64_t tiles() const { return (cols + tile - 1) / tile; }
  // Throws Error{invalid_argument} that names the wrong field.
  void validate() const;
};

// A TwELL matrix that owns its memory. Any number of threads may read it, or one may write.
class TwellMatrix {
 public:
  TwellMatrix() = default;
  // With empty rows. Throws Error if the layout is invalid.
  explicit TwellMatrix(const TwellLayout& layout);

  const TwellLayout& layout() const { return layout_; }

  // True count of non-zeros of (row, tile), 0 … tile.
  std::int32_t count(std::int64_t row, std::int64_t tile) const { return counts_[cell(row, tile)]; }
  // The count(row, tile) slots, inline or in their overflow record. Slot is TwellSlot16 or 32.
  template <class Slot>
  const Slot* slots(std::int64_t row, std::int64_t tile) const {
    return static_cast<const Slot*>(stored(row, tile));
  }
  const void* stored(std::int64_t row, std::int64_t tile) const;
  // Appends `n` slots to (row, tile); the caller keeps columns ascending. `slots` holds TwellSlot16
  // or 32. A tile that outgrows its inline room moves to an overflow record.
  void append(std::int64_t row, std::int64_t tile, const void* slots, std::int32_t n);
  // Empties every row; keeps the memory.
  void clear();

  std::int64_t nnz() const;
  std::int64_t row_nnz(std::int64_t row) const;
  // Tiles whose count exceeds the capacity.
  std::int64_t overflow_tiles() const;

 private:
  std::size_t cell(std::int64_t row, std::int64_t tile) const {
    return static_cast<std::size_t>(row * layout_.tiles() + tile);
  }
  std::size_t bytes(std::int32_t slots) const {
    return static_cast<std::size_t>(slots) * slot_bytes(layout_.dtype);
  }

  TwellLayout layout_;
  std::vector<std::int32_t> counts_;              // [rows × tiles]
  std::vector<std::byte> slots_;                  // [rows × tiles × capacity]
  std::vector<std::vector<std::byte>> overflow_;  // records of `tile` slots
};

// Packs the non-zeros of `dense`. NaN and Inf are non-zeros, and -0 is not. `dense` must have the
// layout's dtype and shape.
TwellMatrix pack(ConstMatrixView dense, const TwellLayout& layout);
// Writes every element of `dense`, zeros included.
void unpack(const TwellMatrix& packed, MatrixView dense);
// Checks that counts are in range, that columns ascend and are below the tile's width, and that no
// zero is stored. Throws Error{invalid_argument} that names the first broken rule.
void validate(const TwellMatrix& packed);

}  // namespace twell
#pragma GCC visibility pop
