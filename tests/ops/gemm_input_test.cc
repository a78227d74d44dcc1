// x as kernels read it: dtype, depth, and rows that are spread over the cache sets.
#include "ops/gemm_input.h"

#include <gtest/gtest.h>

#include <vector>

namespace twell {
namespace {

constexpr std::int64_t kRows = 5;

// Exact in bf16.
float value(std::int64_t row, std::int64_t k) { return static_cast<float>(row * 32 + k % 32); }

// x in memory, its rows `stride` apart.
std::vector<bf16> rows_of(std::int64_t depth, std::int64_t stride) {
  std::vector<bf16> x(static_cast<std::size_t>(kRows * stride), bf16(-1.0F));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t k = 0; k < depth; ++k) {
      x[static_cast<std::size_t>(r * stride + k)] = bf16(value(r, k));
    }
  }
  return x;
}

template <class T>
void expect_rows(const GemmInput& input, std::int64_t stride, bool in_place) {
  EXPECT_EQ(input.in_place(), in_place);
  std::vector<T> prepared(input.prepared_bytes() / sizeof(T), T(-2.0F));
  if (!in_place) input.prepare(0, kRows, prepared.data());
  const GemmArgs args = input.args(prepared.data(), 1, kRows);
  EXPECT_EQ(args.rows, kRows - 1);
  EXPECT_EQ(args.x_stride, stride);
  const std::int64_t depth = packed_depth(input.x.dtype, input.x.cols);
  for (std::int64_t r = 1; r < kRows; ++r) {
    const T* row = static_cast<const T*>(args.x) + (r - 1) * stride;
    for (std::int64_t k = 0; k < depth; ++k) {
      const float expected = k < input.x.cols ? value(r, k) : 0.0F;
      ASSERT_EQ(static_cast<float>(row[k]), expected) << "row " << r << " input " << k;
    }
  }
}

GemmInput input_of(const std::vector<bf16>& x, std::int64_t depth, std::int64_t stride,
                   XForm form) {
  return {{x.data(), DType::bf16, kRows, depth, stride}, form};
}

TEST(GemmInput, RowsAsTheyComeStayInPlace) {
  const auto x = rows_of(64, 70);
  expect_rows<bf16>(input_of(x, 64, 70, {DType::bf16}), 70, true);
}

TEST(GemmInput, ConvertsAndPads) {
  const auto x = rows_of(33, 40);
  expect_rows<bf16>(input_of(x, 33, 40, {DType::bf16}), 64, false);
  expect_rows<float>(input_of(x, 33, 40, {DType::f32}), 64, false);
}

TEST(GemmInput, SpreadRowsLieAnOddNumberOfLinesApart) {
  struct Case {
    std::int64_t depth, stride, expected;
    bool in_place;
  };
  for (const Case& c : {Case{2048, 2048, 2080, false}, Case{64, 64, 96, false},
                        Case{96, 96, 96, true}, Case{64, 96, 96, true}, Case{96, 128, 96, false},
                        Case{70, 96, 96, false}, Case{33, 33, 96, false}}) {
    SCOPED_TRACE(c.depth);
    const auto x = rows_of(c.depth, c.stride);
    for (std::int64_t from : {std::int64_t{1}, kRows}) {
      expect_rows<bf16>(input_of(x, c.depth, c.stride, {DType::bf16, from}), c.expected,
                        c.in_place);
    }
  }
  const auto x = rows_of(64, 64);
  expect_rows<bf16>(input_of(x, 64, 64, {DType::bf16, kRows + 1}), 64, true);
}

}  // namespace
}  // namespace twell
