// Up and down of many rows, gathered in pieces of columns: a piece of all rows after the other, so
// that those of the neurons that any of them fires stay in L2.
#pragma once

#include "ops/forward/sparse_rows.h"

namespace twell {

// A thread's.
class GatherPieces {
 public:
  static constexpr std::int64_t kRows = 256;  // that share a piece

  static std::size_t bytes(const SparseRows& work);
  // `memory`: so many bytes. `own`: room for a row of sums.
  GatherPieces(const SparseRows& work, void* memory, float* own);

  // Rows [begin, end) of the block.
  void run(std::int64_t begin, std::int64_t end);

 private:
  std::int64_t fill(std::int64_t begin, std::int64_t end);
  void multiply_by_up(std::int64_t first, std::int64_t count);
  void scale_hidden(std::int64_t first, std::int64_t count);
  void add_down(std::int64_t first, std::int64_t count);

  const SparseRows& work_;
  // Neurons of some rows in one list, the values of their activation, and dot products with x.
  std::int64_t room_;
  std::int32_t* neurons_;
  float* values_;
  float* dots_;     // of the pieces so far
  float* partial_;  // of this piece
  float* own_;
  std::int64_t offsets_[kRows + 1] = {};
  float scale_[kRows] = {};  // s of each row, with a norm
};

}  // namespace twell
