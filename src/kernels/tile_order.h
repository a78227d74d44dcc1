// x in the order in which the tiles of AMX read it.
//
// Blocks of 256 inputs follow each other; in a block, groups of 16 rows; in a group, pieces of 64
// bytes of its rows: 1 KB that one tile register holds. So a sweep over the rows of a block reads
// one stream, where rows as they come lie on as many pages: at D = 2048, sixteen for each tile.
#pragma once

#include <cstdint>

namespace twell {

struct TileOrder {
  static constexpr std::int64_t kRows = 16;
  static constexpr std::int64_t kInputs = 256;
  static constexpr std::int64_t kPiece = 64;  // bytes
  static constexpr std::int64_t kTile = kRows * kPiece;

  // Bytes from block to block, of `rows` rows in all with elements of so many bytes.
  static constexpr std::int64_t block(std::int64_t rows, std::int64_t element) {
    return (rows + kRows - 1) / kRows * kRows * kInputs * element;
  }
  // Bytes to a row within a block.
  static constexpr std::int64_t row(std::int64_t row, std::int64_t element) {
    return row / kRows * kRows * kInputs * element + row % kRows * kPiece;
  }
  static constexpr std::int64_t blocks(std::int64_t inputs) {
    return (inputs + kInputs - 1) / kInputs;
  }
};

}  // namespace twell
