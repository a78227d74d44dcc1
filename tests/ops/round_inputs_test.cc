// Inputs in 8 bits: how they are rounded, and their products with weights of codes, on every tier.
#include <cmath>
#include <limits>
#include <random>

#include "kernels/kernel.h"
#include "kernels/ref/ref.h"
#include "tests/ops/ffn_fixture.h"
#include "tests/support/message_of.h"
#include "twell/linear.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class X, class W>
struct Pair {
  using Input = X;
  using Weight = W;
};

template <class P>
class RoundInputsTest : public testing::Test {};
using Types = testing::Types<Pair<bf16, std::int8_t>, Pair<float, std::int8_t>, Pair<bf16, Int4>,
                             Pair<float, Int4>>;
TYPED_TEST_SUITE(RoundInputsTest, Types);

// Whether kernels find one term in each block of row `row`.
template <class P>
bool in_one_term(CpuTier tier, const TestMatrix<typename P::Input>& x, std::int64_t row) {
  constexpr WeightType kType =
      std::is_same_v<typename P::Weight, Int4> ? WeightType::int4 : WeightType::int8;
  constexpr DType kX = dtype_of<typename P::Input>::value;
  std::vector<CodeTerms> terms(static_cast<std::size_t>(code_blocks(x.cols())));
  return weight_kernels_of(tier, kX, kType)
      .to_terms(x.view().row_bytes(row), x.cols(), terms.data());
}

// Of all sizes and signs that a float has, ties between whole numbers, and what is not finite.
template <class T>
TestMatrix<T> hard_inputs(std::int64_t rows, std::int64_t cols) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same each time
  std::normal_distribution<float> normal;
  TestMatrix<T> x(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    const int exponent = static_cast<int>(r * 37 % 210) - 90;
    for (std::int64_t k = 0; k < cols; ++k) {
      const float step = static_cast<float>(random() % 257) / 2 - 64;  // with halves
      x.set(r, k, std::ldexp(r % 2 == 0 ? normal(random) : step, exponent));
    }
  }
  const float most = std::numeric_limits<float>::max();
  x.set(0, 0, 0x1.fep127F);  // bf16's largest, which would be rounded to infinity
  x.set(0, 1, -0x1.fep127F);
  x.set(1, 0, std::numeric_limits<float>::quiet_NaN());
  x.set(2, 0, -std::numeric_limits<float>::infinity());
  for (std::int64_t k = 0; k < cols; ++k) x.set(3, k, 1e-35F);
  for (std::int64_t k = 0; k < cols; ++k) x.set(4, k, k % 2 == 0 ? 0.0F : -0.0F);
  if (std::is_same_v<T, float>) x.set(5, 0, most);
  return x;
}

TYPED_TEST(RoundInputsTest, AreTheDefinition) {
  using T = typename TypeParam::Input;
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const std::int64_t cols : {1, 31, 255, 256, 257, 600}) {
      const auto x = hard_inputs<T>(40, cols);
      TestMatrix<T> y(40, cols, 3);
      round_inputs(context, x.view(), y.view());
      const ref::Matrix expected = ref::round_inputs(ref::widen(x.view()));
      for (std::int64_t r = 0; r < 40; ++r) {
        for (std::int64_t k = 0; k < cols; ++k) {
          const double found = y.value(r, k), wanted = expected.at(r, k);
          ASSERT_TRUE(found == wanted || (std::isnan(found) && std::isnan(wanted)))
              << name_of(tier) << " " << r << "," << k << ": " << found << ", not " << wanted;
        }
        const bool as_it_was = r >= 1 && r <= 3;  // not finite, or next to 0
        EXPECT_EQ(in_one_term<TypeParam>(tier, y, r), !as_it_was) << name_of(tier) << " row " << r;
      }
      // Again changes nothing, and in place is allowed.
      TestMatrix<T> again = y;
      round_inputs(context, std::as_const(again).view(), again.view());
      for (std::int64_t r = 0; r < 40; ++r) {
        ASSERT_EQ(
            std::memcmp(&again.at(r, 0), &y.at(r, 0), static_cast<std::size_t>(cols) * sizeof(T)),
            0);
      }
    }
  }
}

// At rows, depths and outputs around what kernels take at once.
TYPED_TEST(RoundInputsTest, LinearLayers) {
  using T = typename TypeParam::Input;
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 3, .tier = tier});
    for (const auto& [rows, depth, outputs] : {std::tuple{1, 70, 90},
                                               {5, 257, 48},
                                               {17, 300, 257},
                                               {23, 1, 16},
                                               {64, 256, 64},
                                               {100, 513, 17},
                                               {193, 520, 80},
                                               {1100, 64, 33}}) {
      test::Layer<T, typename TypeParam::Weight> layer({rows, depth, outputs, true, {}, 0.0F});
      round_inputs(context, std::as_const(layer.x).view(), layer.x.view());
      ASSERT_TRUE(in_one_term<TypeParam>(tier, layer.x, 0));
      TestMatrix<T> y(rows, outputs, 5);
      linear(context, std::as_const(layer.x).view(), layer.packed().view(), nullptr, y.view());
      SCOPED_TRACE(std::string(name_of(tier)) + " " + std::to_string(rows) + " rows");
      expect_linear(layer, y);
    }
  }
}

// Layers, with rows that are not rounded among the others, and rows that are not finite.
TYPED_TEST(RoundInputsTest, Layers) {
  using Coded = test::Layer<typename TypeParam::Input, typename TypeParam::Weight>;
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const std::int64_t rows : {1, 18, 65}) {
      for (const bool mixed : {false, true}) {
        Coded layer({rows, 290, 100, true, {}, 1.5F});
        const auto whole = layer.x;
        round_inputs(context, whole.view(), layer.x.view());
        ASSERT_TRUE(in_one_term<TypeParam>(tier, layer.x, 0));
        if (mixed && rows > 1) {
          layer.x.set(rows - 1, 7, layer.x.value(rows - 1, 7) + 0.01F);
          layer.x.set(rows / 2, 5, std::numeric_limits<float>::quiet_NaN());
        }
        check_layer(context, layer, 32, 4);
      }
    }
  }
}

TEST(RoundInputs, OthersHaveSeveralTerms) {
  const auto x = random_matrix<bf16>(1, 300, 9, 1.0F);
  for (const CpuTier tier : available_cpu_tiers()) {
    EXPECT_FALSE((in_one_term<Pair<bf16, std::int8_t>>(tier, x, 0)));
  }
}

TEST(RoundInputs, ErrorsNameTheArgument) {
  Context context({.threads = 1, .tier = {}});
  TestMatrix<bf16> x(2, 8), y(2, 7);
  EXPECT_EQ(message_of([&] { round_inputs(context, std::as_const(x).view(), y.view()); }),
            "twell::round_inputs: y: expected bf16 [2, 8], got bf16 [2, 7]");
  ConstMatrixView f16 = std::as_const(x).view();
  f16.dtype = DType::f16;
  EXPECT_EQ(message_of([&] { round_inputs(context, f16, x.view()); }),
            "twell::round_inputs: x: expected bf16 or f32, got f16");
}

}  // namespace
}  // namespace twell
