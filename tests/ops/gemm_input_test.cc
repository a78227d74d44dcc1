// x as kernels read it: dtype, depth, and the order of its elements.
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
  const std::int64_t depth = packed_depth(weight_type(input.x.dtype), input.x.cols);
  for (std::int64_t r = 1; r < kRows; ++r) {
    const T* row = static_cast<const T*>(args.x) + (r - 1) * stride;
    for (std::int64_t k = 0; k < depth; ++k) {
      const float expected = k < input.x.cols ? value(r, k) : 0.0F;
      ASSERT_EQ(static_cast<float>(row[k]), expected) << "row " << r << " input " << k;
    }
  }
}

GemmInput input_of(const std::vector<bf16>& x, std::int64_t depth, std::int64_t stride,
                   XLayout form) {
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

// Sixteen rows' pieces of 64 bytes together, 256 inputs after 256.
TEST(GemmInput, TilesHoldSixteenRows) {
  constexpr std::int64_t kMany = 37;
  for (const std::int64_t depth : {1, 31, 32, 33, 256, 257, 600}) {
    SCOPED_TRACE(depth);
    std::vector<bf16> x(static_cast<std::size_t>(kMany * depth));
    for (std::int64_t r = 0; r < kMany; ++r) {
      for (std::int64_t k = 0; k < depth; ++k) {
        x[static_cast<std::size_t>(r * depth + k)] = bf16(value(r % 5, k));
      }
    }
    const GemmInput input = {{x.data(), DType::bf16, kMany, depth}, {DType::bf16, kMany}};
    EXPECT_FALSE(input.in_place());
    std::vector<bf16> prepared(input.prepared_bytes() / sizeof(bf16), bf16(-2.0F));
    input.prepare(0, kMany, prepared.data());
    for (const std::int64_t begin : {0, 16, 32}) {
      const GemmArgs args = input.args(prepared.data(), begin, kMany);
      EXPECT_EQ(args.x_block, 48 * 256 * 2);
      EXPECT_EQ(args.x, prepared.data() + begin * 256);
    }
    for (std::int64_t r = 0; r < kMany; ++r) {
      for (std::int64_t k = 0; k < packed_depth(WeightType::bf16, depth); ++k) {
        const std::int64_t at = k / 256 * (48 * 256) + r / 16 * (16 * 256) +
                                k % 256 / 32 * (16 * 32) + r % 16 * 32 + k % 32;
        const float expected = k < depth ? value(r % 5, k) : 0.0F;
        ASSERT_EQ(static_cast<float>(prepared[static_cast<std::size_t>(at)]), expected)
            << "row " << r << " input " << k;
      }
    }
  }
  const auto few = rows_of(64, 64);
  expect_rows<bf16>(input_of(few, 64, 64, {DType::bf16, kRows + 1}), 64, true);
}

}  // namespace
}  // namespace twell
