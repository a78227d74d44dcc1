#include <gtest/gtest.h>

#include <numeric>

#include "format/twell_view.h"
#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "twell/format.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;
using test::TestMatrix;

template <class T>
class TwellMatrixTest : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(TwellMatrixTest, Types);

template <class T>
TwellLayout layout_of(const TestMatrix<T>& m, std::int32_t tile, std::int32_t capacity) {
  return {m.rows(), m.cols(), tile, capacity, dtype_of<T>::value};
}

// Packs, validates, unpacks over poisoned memory and compares every bit (with -0 read as +0).
template <class T>
void expect_lossless(const TestMatrix<T>& dense, std::int32_t tile, std::int32_t capacity) {
  const TwellMatrix packed = pack(dense.view(), layout_of(dense, tile, capacity));
  validate(packed);
  TestMatrix<T> back(dense.rows(), dense.cols());
  unpack(packed, back.view());
  std::int64_t nnz = 0;
  for (std::int64_t r = 0; r < dense.rows(); ++r) {
    for (std::int64_t c = 0; c < dense.cols(); ++c) {
      const T expected = is_zero(dense.at(r, c)) ? T{} : dense.at(r, c);
      nnz += !is_zero(dense.at(r, c));
      ASSERT_EQ(std::memcmp(&expected, &back.at(r, c), sizeof(T)), 0) << r << ", " << c;
    }
  }
  EXPECT_EQ(packed.nnz(), nnz);
}

// 0 … T non-zeros in a tile, at every interesting capacity.
TYPED_TEST(TwellMatrixTest, EveryCountOfATileIsKept) {
  constexpr std::int32_t kTile = 64;
  for (std::int32_t capacity : {1, 2, 7, 31, 32, 63, 64}) {
    TestMatrix<TypeParam> dense(kTile + 1, 2 * kTile + 5);
    std::mt19937 random(static_cast<unsigned>(capacity));
    dense.fill([](std::int64_t, std::int64_t) { return 0.0F; });
    std::int64_t overflowing = 0;
    for (std::int64_t row = 0; row <= kTile; ++row) {
      std::vector<std::int64_t> columns(kTile);
      std::iota(columns.begin(), columns.end(), kTile);  // the middle tile
      std::shuffle(columns.begin(), columns.end(), random);
      for (std::int64_t i = 0; i < row; ++i) {
        dense.set(row, columns[static_cast<std::size_t>(i)], static_cast<float>(i + 1));
      }
      overflowing += row > capacity;
    }
    expect_lossless(dense, kTile, capacity);
    const TwellMatrix packed = pack(dense.view(), layout_of(dense, kTile, capacity));
    for (std::int64_t row = 0; row <= kTile; ++row) EXPECT_EQ(packed.count(row, 1), row);
    EXPECT_EQ(packed.overflow_tiles(), overflowing);
  }
}

TYPED_TEST(TwellMatrixTest, SpecialValues) {
  TestMatrix<TypeParam> dense(1, 8);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {0.0F, -0.0F, nan, inf, -inf, -1.0F, 0x1p-130F, 1.0F};
  dense.fill([&](std::int64_t, std::int64_t c) { return values[c]; });
  expect_lossless(dense, 16, 2);
  const TwellMatrix packed = pack(dense.view(), layout_of(dense, 16, 2));
  EXPECT_EQ(packed.nnz(), 6);
}

TYPED_TEST(TwellMatrixTest, EmptyShapes) {
  for (auto [rows, cols] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
    TestMatrix<TypeParam> dense(rows, cols);
    expect_lossless(dense, 16, 1);
  }
}

TYPED_TEST(TwellMatrixTest, AnySparsityAnyShapeIsLossless) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto up_to = [&](int most) { return static_cast<int>(random() % (most + 1U)); };
    TestMatrix<TypeParam> dense(up_to(5), 1 + up_to(298));
    const int tile = 16 * (1 + up_to(18));
    const int capacity = 1 + up_to(tile - 1);
    const int percent = up_to(100);
    dense.fill([&](std::int64_t, std::int64_t) {
      return up_to(99) < percent ? static_cast<float>(up_to(999)) : 0.0F;
    });
    expect_lossless(dense, tile, capacity);
    if (this->HasFatalFailure()) return;
  }
}

TEST(TwellLayoutTest, NamesTheBrokenField) {
  const auto message = [](TwellLayout layout) {
    return message_of([&] { TwellMatrix m(layout); });
  };
  EXPECT_NE(message({-1, 4, 16, 1, DType::bf16}).find("rows"), std::string::npos);
  EXPECT_NE(message({1, -4, 16, 1, DType::bf16}).find("cols"), std::string::npos);
  EXPECT_NE(message({1, 4, 17, 1, DType::bf16}).find("tile"), std::string::npos);
  EXPECT_NE(message({1, 4, 65552, 1, DType::bf16}).find("tile"), std::string::npos);
  EXPECT_NE(message({1, 4, 16, 17, DType::bf16}).find("capacity"), std::string::npos);
  EXPECT_NE(message({1, 4, 16, 0, DType::bf16}).find("capacity"), std::string::npos);
  EXPECT_NE(message({1, 4, 16, 1, DType::f16}).find("dtype"), std::string::npos);
}

TEST(ValidateTest, FindsEveryBrokenRule) {
  const TwellLayout layout = {1, 20, 16, 8, DType::f32};
  const auto message = [&](std::vector<TwellSlot32> slots, std::int64_t tile) {
    TwellMatrix m(layout);
    m.append(0, tile, slots.data(), static_cast<std::int32_t>(slots.size()));
    return message_of([&] { validate(m); });
  };
  EXPECT_EQ(message({{1, 1.0F}, {5, 2.0F}}, 0), "");
  EXPECT_NE(message({{5, 1.0F}, {1, 2.0F}}, 0).find("ascend"), std::string::npos);
  EXPECT_NE(message({{5, 1.0F}, {5, 2.0F}}, 0).find("ascend"), std::string::npos);
  EXPECT_NE(message({{4, 1.0F}}, 1).find("below"), std::string::npos);
  EXPECT_NE(message({{3, 0.0F}}, 0).find("zero"), std::string::npos);
  EXPECT_NE(message({{0, 1.F}, {1, 1.F}, {2, 1.F}, {3, 1.F}, {4, 1.F}}, 1).find("count"),
            std::string::npos);
  TwellMatrix m(layout);
  EXPECT_NE(message_of([&] { m.append(1, 0, nullptr, 0); }).find("row"), std::string::npos);
  EXPECT_NE(message_of([&] { m.append(0, 2, nullptr, 0); }).find("tile"), std::string::npos);
}

TEST(PackTest, RefusesAnotherShapeOrDtype) {
  const TestMatrix<float> dense(2, 3);
  EXPECT_NE(message_of([&] {
              pack(dense.view(), {2, 4, 16, 1, DType::f32});
            }).find("expected f32 [2, 4]"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              pack(dense.view(), {2, 3, 16, 1, DType::bf16});
            }).find("got f32"),
            std::string::npos);
}

}  // namespace
}  // namespace twell
