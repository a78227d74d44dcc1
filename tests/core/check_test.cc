#include "core/check.h"

#include <gtest/gtest.h>

#include <vector>

namespace twell {
namespace {

// Whether y of `y_rows` × `y_cols` at element `y_at` may be written while x, 4 × 8 at element 100
// with 32 from row to row, is read.
bool apart(std::int64_t y_at, std::int64_t y_rows, std::int64_t y_cols, std::int64_t y_stride) {
  static float memory[400];
  const ConstMatrixView x(memory + 100, DType::f32, 4, 8, 32);
  const ConstMatrixView y(memory + y_at, DType::f32, y_rows, y_cols, y_stride);
  try {
    require_apart("op", "y", y, "x", x);
    return true;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "twell::op: y: overlaps x in memory; give it memory of its own");
    return false;
  }
}

TEST(RequireApart, LooksAtElementsNotAtRanges) {
  EXPECT_FALSE(apart(100, 4, 8, 32));  // in place
  EXPECT_FALSE(apart(100, 1, 1, 1));   // its first element
  EXPECT_FALSE(apart(203, 1, 1, 1));   // its last
  EXPECT_FALSE(apart(132, 4, 8, 32));  // a row below
  EXPECT_FALSE(apart(93, 4, 8, 32));   // seven columns to the left
  EXPECT_TRUE(apart(204, 4, 8, 32));   // behind it
  EXPECT_TRUE(apart(0, 3, 8, 32));     // before it
  EXPECT_TRUE(apart(108, 4, 8, 32));   // the next eight columns of the same matrix
  EXPECT_TRUE(apart(92, 4, 8, 32));    // the eight before
  EXPECT_FALSE(apart(92, 4, 9, 32));   // one more
  EXPECT_FALSE(apart(124, 4, 9, 32));  // whose last column is x's first of the next row
  EXPECT_TRUE(apart(124, 4, 8, 32));
  EXPECT_FALSE(apart(108, 4, 8, 16));  // other strides: ranges that overlap are refused
  EXPECT_TRUE(apart(100, 0, 8, 32));   // nothing is written
}

}  // namespace
}  // namespace twell
