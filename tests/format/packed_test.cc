#include "twell/packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "tests/support/matrix.h"
#include "twell/coded_matrix.h"
#include "twell/format.h"
#include "twell/screen.h"
#include "twell/status.h"

namespace twell {
namespace {

template <class T>
class PackedTest : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(PackedTest, Types);

TYPED_TEST(PackedTest, RoundTripsAtTailSizesAndPadsWithZeros) {
  constexpr WeightType kType = weight_type(dtype_of<TypeParam>::value);
  for (std::int64_t rows : {1, 15, 16, 17, 33}) {
    for (std::int64_t cols : {1, 2, 31, 32, 33, 65, 259}) {
      const auto w = test::random_matrix<TypeParam>(rows, cols, 1, 1.0F, 3);
      const PackedWeight packed(w.view());
      test::TestMatrix<TypeParam> back(rows, cols, 1);
      unpack_weight(packed.view(), back.view());
      double sum = 0.0;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(w.value(r, c), back.value(r, c))
              << rows << "x" << cols << " at " << r << "," << c;
          sum += std::abs(w.value(r, c));
        }
      }
      // Whatever is not a weight is zero.
      const auto size = packed_bytes(kType, rows, cols) / sizeof(TypeParam);
      const auto* values = static_cast<const TypeParam*>(packed.view().data);
      for (std::size_t i = 0; i < size; ++i) sum -= std::abs(static_cast<float>(values[i]));
      EXPECT_NEAR(sum, 0.0, 1e-9 * static_cast<double>(size));
    }
  }
}

TEST(PackedWeight, CopiesShareAndOutliveTheOriginal) {
  const auto w = test::random_matrix<float>(20, 7, 1);
  std::optional<PackedWeight> first(w.view());
  const PackedWeight copy = *first;
  EXPECT_EQ(copy.view().data, first->view().data);
  first.reset();
  test::TestMatrix<float> back(20, 7);
  unpack_weight(copy.view(), back.view());
  EXPECT_EQ(back.value(19, 6), w.value(19, 6));
}

TEST(WeightView, IsAMatrixOrItsPanels) {
  auto w = test::random_matrix<bf16>(20, 7, 1, 1.0F, 3);
  const WeightView rows = w.view();
  EXPECT_EQ(rows.type, WeightType::bf16);
  EXPECT_EQ(rows.layout, WeightLayout::rows);
  EXPECT_EQ(rows.row_bytes(19), reinterpret_cast<const std::byte*>(&w.at(19, 0)));
  const WeightView piece = rows.columns(2, 3);
  EXPECT_EQ(piece.cols, 3);
  EXPECT_EQ(piece.row<bf16>(4), &w.at(4, 2));
  const PackedWeight packed(w.view());
  EXPECT_EQ(packed.view().type, WeightType::bf16);
  EXPECT_EQ(packed.view().layout, WeightLayout::panels);
  EXPECT_EQ(packed.view().rows * 100 + packed.view().cols, 2007);
  EXPECT_THROW(PackedWeight{packed.view()}, Error);
  EXPECT_THROW(unpack_weight(rows, test::TestMatrix<bf16>(20, 7).view()), Error);
}

// n of a tensor [rows, n, 1] has room for what packing adds, at most 64 numbers a row beside, and
// tells every number of columns from all others.
TEST(PackedExtent, SaysTheColumns) {
  for (std::size_t i = 0; i < kWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    const std::int64_t unit = traits_of(type).unit, number = element_bytes(type);
    for (std::int64_t rows : {0, 1, 2, 7, 15, 16, 17, 31, 32, 100, 5632, 50257}) {
      std::set<std::int64_t> used;
      for (std::int64_t cols = 0; cols < 600; cols += in_blocks(type) ? 32 : 1) {
        const std::int64_t n = packed_extent(type, rows, cols);
        EXPECT_TRUE(used.insert(n).second) << rows << "x" << cols;
        EXPECT_EQ(packed_cols(type, rows, n), cols) << rows << "x" << cols;
        const bool padded = rows % kPanel != 0 || packed_depth(type, cols) != cols;
        EXPECT_TRUE(padded || rows == 0 || n == cols || has_scales(type)) << rows << "x" << cols;
        const auto bytes = static_cast<std::int64_t>(packed_bytes(type, rows, cols));
        const std::int64_t beside = rows * n - bytes / number;
        EXPECT_TRUE(beside >= 0 && beside <= unit * rows) << rows << "x" << cols << ": " << beside;
      }
      // No other size stands for a weight.
      for (std::int64_t n = 0; n < 600; ++n) {
        const std::int64_t cols = packed_cols(type, rows, n);
        EXPECT_TRUE(cols == -1 || packed_extent(type, rows, cols) == n) << rows << ", " << n;
        EXPECT_TRUE(cols != -1 || used.count(n) == 0) << rows << ", " << n;
      }
    }
  }
}

TEST(PackedErrors, NamesTheArgument) {
  test::TestMatrix<float> w(2, 2);
  w.fill([](std::int64_t, std::int64_t) { return 1.0F; });
  EXPECT_THROW(unpack_weight(PackedWeight(w.view()).view(), test::TestMatrix<float>(2, 3).view()),
               Error);
  EXPECT_THROW(PackedWeight(MatrixView(w.view().data, DType::f16, 2, 2)), Error);
  EXPECT_THROW(PackedWeight(MatrixView(nullptr, DType::f32, -1, 2)), Error);
  EXPECT_THROW(pack_weight(w.view(), nullptr), Error);
}

// At an element's address, which need not begin a cache line.
TEST(PackedErrors, MemoryHasToBeAligned) {
  const auto w = test::random_matrix<float>(16, 4, 1);
  std::vector<std::byte> memory(packed_bytes(WeightType::f32, 16, 4) + 128);
  auto* aligned = memory.data();
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  pack_weight(w.view(), aligned);
  test::TestMatrix<float> back(16, 4);
  const auto unpack = [&](const void* data) {
    unpack_weight(packed_view(data, WeightType::f32, 16, 4), back.view());
  };
  unpack(aligned);
  EXPECT_EQ(back.value(15, 3), w.value(15, 3));
  try {
    pack_weight(w.view(), aligned + 18);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "twell::pack_weight: memory: is not aligned to 4 bytes");
  }
  EXPECT_THROW(unpack(aligned + 2), Error);
  EXPECT_THROW(unpack(nullptr), Error);
}

TEST(PackedErrors, RefusesF16) {
  std::uint16_t bits[1024] = {};
  const MatrixView w = {bits, DType::f16, 2, 3};
  const auto expect_refused = [](const auto& call, const std::string& message) {
    try {
      call();
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), message);
    }
  };
  const std::string why = "expected bf16, f32 or codes, got f16";
  expect_refused([&] { pack_weight(w, bits); }, "twell::pack_weight: w: " + why);
  expect_refused([&] { PackedWeight{w}; }, "twell::PackedWeight: w: " + why);
  expect_refused([&] { unpack_weight(packed_view(bits, WeightType::f16, 2, 3), w); },
                 "twell::unpack_weight: panels: " + why);
  const std::string no_codes = "expected bf16 or f32, got f16";
  expect_refused([&] { make_screen(w, nullptr, bits); }, "twell::make_screen: w: " + no_codes);
  expect_refused(
      [&] {
        pack(w, {2, 3, 16, 1, DType::f16});
      },
      "twell::TwellMatrix: dtype: " + no_codes);
}

// The rows of a matrix of codes and scales hold both, and tell every number of rows from all
// others.
TEST(CodedMatrix, SaysTheRows) {
  for (const ScaledBy by : {ScaledBy::row, ScaledBy::column}) {
    for (std::int64_t cols = 1; cols < 300; ++cols) {
      std::set<std::int64_t> used;
      for (std::int64_t rows = 1; rows < 300; ++rows) {
        const std::int64_t extent = coded_extent(rows, cols, by);
        EXPECT_TRUE(used.insert(extent).second);
        ASSERT_EQ(coded_rows(extent, cols, by), rows) << extent << "x" << cols;
        const std::int64_t scales = by == ScaledBy::row ? rows : cols;
        const std::int64_t end = coded_scales_at(rows, cols) + 4 * scales;
        ASSERT_TRUE(end <= extent * cols && extent * cols < end + cols + 4) << rows << "x" << cols;
      }
      for (std::int64_t extent = 0; extent < 300; ++extent) {
        ASSERT_EQ(coded_rows(extent, cols, by) >= 0, used.contains(extent))
            << extent << "x" << cols;
      }
    }
    EXPECT_EQ(coded_rows(10, 0, by), -1);
    const std::int64_t many = std::int64_t{1} << 40;
    EXPECT_EQ(coded_rows(coded_extent(many, 4096, by), 4096, by), many);
  }
}

// Blocks of 2 MB and more: the one that was freed last serves the next of its size.
TEST(PreparedMemory, WhatWasFreedLastIsUsedAgain) {
  constexpr std::size_t kBytes = (3U << 20U) + 64;
  {
    PreparedMemory one(kBytes);
    const PreparedMemory copy = one;
    one = PreparedMemory(kBytes);
    EXPECT_NE(one.data(), copy.data()) << "a copy still holds it";
  }
  PreparedMemory again(kBytes);
  std::fill_n(static_cast<std::uint8_t*>(again.mutable_data()), kBytes, std::uint8_t{1});
  const void* const used = again.data();
  again = PreparedMemory(2 * kBytes);
  EXPECT_NE(again.data(), used);
  EXPECT_EQ(PreparedMemory(kBytes).data(), used);
  PreparedMemory(std::size_t{65} << 20U);  // too large to be kept
  EXPECT_EQ(PreparedMemory(kBytes).data(), used);
}

}  // namespace
}  // namespace twell
