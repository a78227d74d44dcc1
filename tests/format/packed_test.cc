#include "twell/packed.h"

#include <gtest/gtest.h>

#include "tests/support/matrix.h"
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
  constexpr DType kDType = dtype_of<TypeParam>::value;
  for (std::int64_t rows : {1, 15, 16, 17, 33}) {
    for (std::int64_t cols : {1, 2, 31, 32, 33, 65}) {
      const auto w = test::random_matrix<TypeParam>(rows, cols, 1, 1.0F, 3);
      std::vector<TypeParam> packed(packed_bytes(kDType, rows, cols) / sizeof(TypeParam),
                                    static_cast<TypeParam>(99.0F));
      pack_weight(w.view(), packed.data());
      test::TestMatrix<TypeParam> back(rows, cols, 1);
      unpack_weight({packed.data(), kDType, rows, cols}, back.view());
      double sum = 0.0;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(w.value(r, c), back.value(r, c))
              << rows << "x" << cols << " at " << r << "," << c;
          sum += std::abs(w.value(r, c));
        }
      }
      // Whatever is not a weight is zero.
      for (TypeParam value : packed) sum -= std::abs(static_cast<float>(value));
      EXPECT_NEAR(sum, 0.0, 1e-9 * static_cast<double>(packed.size()));
    }
  }
}

TEST(PackedErrors, NamesTheArgument) {
  test::TestMatrix<float> w(2, 2);
  EXPECT_THROW(unpack_weight({nullptr, DType::f32, 2, 3}, w.view()), Error);
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
  const std::string why = "expected bf16 or f32, got f16";
  expect_refused([&] { pack_weight(w, bits); }, "pack_weight: w: " + why);
  expect_refused([&] { unpack_weight({bits, DType::f16, 2, 3}, w); }, "unpack_weight: w: " + why);
  expect_refused([&] { make_screen(w, nullptr, bits); }, "make_screen: w: " + why);
  expect_refused([&] { pack(w, {2, 3, 16, 1, DType::f16}); }, "TwellLayout: dtype: " + why);
}

}  // namespace
}  // namespace twell
