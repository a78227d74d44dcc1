// Weights in ggml's blocks: taken apart and put together, turned around and back, and multiplied on
// every tier.
#include "twell/ggml.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ref/ref.h"
#include "tests/support/bounds.h"
#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_executor.h"
#include "twell/half.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the matrices of this file

constexpr GgmlFormat kAll[] = {GgmlFormat::q4_0, GgmlFormat::q5_0, GgmlFormat::q8_0,
                               GgmlFormat::q4_k, GgmlFormat::q5_k, GgmlFormat::q6_k};

std::int64_t numbers_of(GgmlFormat format) { return traits_of(format).numbers; }

// Blocks of a matrix, in memory that starts at an odd address.
class Blocks {
 public:
  Blocks(GgmlFormat format, std::int64_t rows, std::int64_t cols)
      : view_{format, nullptr, rows, cols},
        bytes_(static_cast<std::size_t>(1 + rows * view_.row_bytes())) {
    view_.blocks = bytes_.data() + 1;
  }
  const GgmlView& view() const { return view_; }
  std::uint8_t* data() { return bytes_.data() + 1; }
  std::int64_t size() const { return std::ssize(bytes_) - 1; }

  // f(block, its number)
  template <class F>
  void each(F f) {
    const std::int64_t bytes = traits_of(view_.format).bytes;
    for (std::int64_t at = 0; at < size(); at += bytes) {
      GgmlBlock block;
      take_block(view_.format, data() + at, &block);
      f(block);
      put_block(view_.format, block, data() + at);
    }
  }

 private:
  GgmlView view_;
  std::vector<std::uint8_t> bytes_;
};

// Codes and sub-scales of any bits, scales from 2⁻¹⁰ to 1 of either sign.
Blocks random_blocks(GgmlFormat format, std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  Blocks out(format, rows, cols);
  std::generate_n(out.data(), out.size(), [&] { return static_cast<std::uint8_t>(random()); });
  const auto scale = [&] {
    const float size = std::ldexp(1.0F + static_cast<float>(random() % 1024) / 1024,
                                  -static_cast<int>(random() % 11));
    return half_of_float(random() % 2 == 0 ? size : -size);
  };
  out.each([&](GgmlBlock& block) {
    block.scale = scale();
    block.minimum = scale();
  });
  return out;
}

template <class Parameters>
class OfFormat : public testing::TestWithParam<Parameters> {
 protected:
  static GgmlFormat format() { return std::get<0>(testing::TestWithParam<Parameters>::GetParam()); }
  static GgmlOrder order() { return std::get<1>(testing::TestWithParam<Parameters>::GetParam()); }
};
std::string name_of(GgmlFormat format, GgmlOrder order) {
  return std::string(twell::name_of(format)) + (order == GgmlOrder::inputs ? "" : "_outputs");
}
const auto kOrders = testing::Values(GgmlOrder::inputs, GgmlOrder::outputs);

class GgmlTest : public OfFormat<std::tuple<GgmlFormat, GgmlOrder>> {};
INSTANTIATE_TEST_SUITE_P(, GgmlTest, testing::Combine(testing::ValuesIn(kAll), kOrders),
                         [](const auto& is) {
                           return name_of(std::get<0>(is.param), std::get<1>(is.param));
                         });

class GgmlProductTest : public OfFormat<std::tuple<GgmlFormat, GgmlOrder, GgmlInputs>> {
 protected:
  static GgmlInputs arithmetic() { return std::get<2>(GetParam()); }
  static bool rounded() { return arithmetic() == GgmlInputs::rounded; }
  static void multiply(Context& context, ConstMatrixView x, const GgmlMatrix& w, MatrixView y) {
    ggml_matmul(context, x, w, y, arithmetic());
  }
  static void expect_product(Context& context, const TestMatrix<float>& x, const Blocks& weights,
                             const std::string& what);
};
INSTANTIATE_TEST_SUITE_P(, GgmlProductTest,
                         testing::Combine(testing::ValuesIn(kAll), kOrders,
                                          testing::Values(GgmlInputs::rounded,
                                                          GgmlInputs::as_they_are)),
                         [](const auto& is) {
                           return name_of(std::get<0>(is.param), std::get<1>(is.param)) +
                                  (std::get<2>(is.param) == GgmlInputs::rounded ? "" : "_f32");
                         });

TEST_P(GgmlTest, BlocksKeepEveryBit) {
  const auto bytes = static_cast<std::size_t>(traits_of(format()).bytes);
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same each time
  std::vector<std::uint8_t> from(bytes), to(bytes);
  for (int i = 0; i < 20000; ++i) {
    for (auto& byte : from) byte = static_cast<std::uint8_t>(random());
    GgmlBlock block;
    take_block(format(), from.data(), &block);
    put_block(format(), block, to.data());
    ASSERT_EQ(from, to) << i;
  }
}

TEST_P(GgmlTest, EveryOrderKeepsEveryBit) {
  const std::int64_t numbers = numbers_of(format());
  for (const std::int64_t rows : {1, 31, 32, 33, 100}) {
    for (const std::int64_t blocks : {1, 2, 9}) {
      Blocks weights = random_blocks(format(), rows, blocks * numbers, 2);
      const GgmlMatrix w(weights.view(), order());
      std::vector<std::uint8_t> back(static_cast<std::size_t>(weights.size()));
      w.unpack(back.data());
      ASSERT_TRUE(std::equal(back.begin(), back.end(), weights.data())) << rows << "," << blocks;
      const double most = rows % 32 == 0 ? 1.03 : 64;
      EXPECT_LE(static_cast<double>(w.bytes()), most * static_cast<double>(weights.size()));
    }
  }
}

// Inputs of which a share is not zero, of both signs or, as ReLU leaves them, of one.
TestMatrix<float> inputs(std::int64_t rows, std::int64_t cols, double share, bool both_signs) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same each time
  std::normal_distribution<float> normal;
  TestMatrix<float> h(rows, cols, 3);
  h.fill([&](std::int64_t, std::int64_t) {
    const float value = normal(random);
    return random() >= share * 4294967296.0 ? 0.0F : both_signs ? value : std::abs(value);
  });
  return h;
}

void GgmlProductTest::expect_product(Context& context, const TestMatrix<float>& h,
                                     const Blocks& weights, const std::string& what) {
  const GgmlMatrix w(weights.view(), order(), &context);
  TestMatrix<float> y(h.rows(), weights.view().rows, 5);
  multiply(context, h.view(), w, y.view());
  const ref::Result wanted = ref::ggml_matmul(ref::widen(h.view()), weights.view(), arithmetic());
  // Sums of integers are exact. Of a block, one is rounded to f32 and multiplied with a product of
  // two numbers, twice where there are minima. Of inputs as they are, those of a group are summed,
  // of AMX in three terms each, and two products of each group.
  const auto sums_of = [&](std::int64_t inputs) {
    return 2 * static_cast<double>(h.cols() / inputs);
  };
  const GgmlTraits traits = traits_of(weights.view().format);
  const double terms = rounded() ? sums_of(traits.numbers) + 2
                                 : sums_of(traits.group) + 3 * static_cast<double>(traits.group);
  for (std::int64_t r = 0; r < h.rows(); ++r) {
    for (std::int64_t d = 0; d < y.cols(); ++d) {
      ASSERT_NEAR(y.value(r, d), wanted.value.at(r, d),
                  accumulation_bound(terms, wanted.magnitude.at(r, d)))
          << what << " " << name_of(context.tier()) << " " << r << "," << d;
    }
  }
}

TEST_P(GgmlProductTest, ProductsAreTheDefinition) {
  const std::int64_t numbers = numbers_of(format());
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const int threads : {1, 3}) {
      Context context({.threads = threads, .tier = tier});
      for (const double share : {0.0, 0.01, 0.09, 0.5, 1.0}) {
        for (const bool both_signs : {false, true}) {
          const Blocks weights = random_blocks(format(), 100, 9 * numbers, 4);
          const auto h = inputs(3, 9 * numbers, share, both_signs);
          expect_product(context, h, weights, std::to_string(share));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(GgmlProductTest, ShapesAndNumbersOfRows) {
  const std::int64_t numbers = numbers_of(format());
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const std::int64_t rows : {1, 31, 32, 33, 289}) {
      for (const std::int64_t blocks : {1, 3}) {
        for (const std::int64_t tokens : {0, 1, 7, 8, 66}) {
          const Blocks weights = random_blocks(format(), rows, blocks * numbers, 5);
          const auto h = inputs(tokens, blocks * numbers, 0.1, true);
          expect_product(context, h, weights,
                         std::to_string(tokens) + " of " + std::to_string(rows));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Sums of 16 bits hold the largest codes and inputs, of one sign and of both.
TEST_P(GgmlProductTest, TheLargestNumbersOverflowNothing) {
  const std::int64_t numbers = numbers_of(format());
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 1, .tier = tier});
    for (const int code : {0, 127, 128, 255}) {
      for (const int scale : {-128, 127}) {
        Blocks weights(format(), 33, 9 * numbers);
        weights.each([&](GgmlBlock& block) {
          std::fill_n(block.codes, std::size(block.codes), static_cast<std::uint8_t>(code));
          std::fill_n(block.scales, std::size(block.scales), static_cast<std::int8_t>(scale));
          std::fill_n(block.minima, std::size(block.minima), std::uint8_t{63});
          block.scale = half_of_float(1.0F);
          block.minimum = half_of_float(-0.5F);
        });
        for (const int sign : {1, 2, 16, -1}) {
          for (const int rows : {1, 2}) {  // one alone, two together
            TestMatrix<float> h(rows, 9 * numbers);
            h.fill([&](std::int64_t, std::int64_t k) {
              return sign < 0 || (sign > 1 && k / (sign / 2) % 2 == 1) ? -1.0F : 1.0F;
            });
            expect_product(context, h, weights,
                           std::to_string(code) + " " + std::to_string(scale) + " " +
                               std::to_string(sign) + " " + std::to_string(rows));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Rows that are multiplied together have the bits that each has alone.
TEST_P(GgmlProductTest, RowsTogetherHaveTheBitsOfEachAlone) {
  const std::int64_t cols = (numbers_of(format()) == 32 ? 37 : 5) * numbers_of(format());
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const double share : {0.02, 0.1, 0.4, 1.0}) {
      for (const std::int64_t rows : {2, 9, 64, 65}) {
        if (tier == CpuTier::amx && !rounded() && rows > 9) continue;  // tiles add in another order
        const GgmlMatrix w(random_blocks(format(), 165, cols, 11).view(), order());
        const auto h = inputs(rows, cols, share, rows % 2 == 0);
        TestMatrix<float> y(rows, 165, 7), expected(rows, 165, 7);
        multiply(context, h.view(), w, y.view());
        for (std::int64_t r = 0; r < rows; ++r) {
          multiply(context, {h.view().row<float>(r), DType::f32, 1, cols}, w,
                   {expected.view().row<float>(r), DType::f32, 1, 165});
        }
        ASSERT_TRUE(same(y, expected)) << name_of(tier) << " " << share << " " << rows;
      }
    }
  }
}

// Neither the order of the matrix nor the zeros that are passed over change a bit of inputs as they
// are.
TEST_P(GgmlTest, InputsAsTheyAreHaveTheSameBitsInEitherOrder) {
  const std::int64_t cols = 5 * numbers_of(format());
  const Blocks weights = random_blocks(format(), 165, cols, 12);
  const auto other = order() == GgmlOrder::inputs ? GgmlOrder::outputs : GgmlOrder::inputs;
  const GgmlMatrix w(weights.view(), order()), turned(weights.view(), other);
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    for (const double share : {0.02, 0.4, 1.0}) {
      for (const std::int64_t rows : {1, 3, 64}) {
        auto h = inputs(rows, cols, share, true);
        for (std::int64_t k = 0; k < cols; k += 3) h.set(0, k, -0.0F);
        TestMatrix<float> y(rows, 165, 7), expected(rows, 165, 7);
        ggml_matmul(context, h.view(), w, y.view(), GgmlInputs::as_they_are);
        ggml_matmul(context, h.view(), turned, expected.view(), GgmlInputs::as_they_are);
        ASSERT_TRUE(same(y, expected)) << name_of(tier) << " " << share << " " << rows;
      }
    }
  }
}

// Whole numbers and halves of the unit 1, of both signs: ties are rounded to even.
TEST_P(GgmlTest, TiesAreRoundedToEven) {
  const std::int64_t numbers = numbers_of(format());
  const Blocks weights = random_blocks(format(), 33, numbers, 8);
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 1, .tier = tier});
    TestMatrix<float> h(1, numbers), even(1, numbers);
    h.fill([](std::int64_t, std::int64_t k) {
      const float size = static_cast<float>(k % 32) / 2;
      return k == 0 ? 127.0F : k % 3 == 0 ? -size : size;
    });
    even.fill([&](std::int64_t, std::int64_t k) { return std::nearbyint(h.value(0, k)); });
    const GgmlMatrix w(weights.view(), order());
    TestMatrix<float> y(1, 33), expected(1, 33);
    ggml_matmul(context, h.view(), w, y.view());
    ggml_matmul(context, even.view(), w, expected.view());
    EXPECT_TRUE(same(y, expected)) << name_of(tier);
  }
}

#if defined(__x86_64__)
// Scales below 2⁻¹⁴ are subnormal binary16, and nothing subnormal in f32: a processor that takes
// those for zero (torch.set_flush_denormal) changes nothing.
TEST_P(GgmlProductTest, SmallScalesOutliveFlushedDenormals) {
  const std::int64_t numbers = numbers_of(format());
  Blocks weights = random_blocks(format(), 33, numbers, 9);
  weights.each([](GgmlBlock& block) { block.scale = block.minimum = 0x0155; });
  const auto h = inputs(1, numbers, 0.5, true);
  const unsigned before = _mm_getcsr();
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 1, .tier = tier});
    const GgmlMatrix w(weights.view(), order());
    TestMatrix<float> y(1, 33), flushed(1, 33);
    multiply(context, h.view(), w, y.view());
    _mm_setcsr(before | 0x8040U);
    multiply(context, h.view(), w, flushed.view());
    _mm_setcsr(before);
    EXPECT_NE(y.value(0, 0), 0.0F);
    EXPECT_TRUE(same(y, flushed)) << name_of(tier);
  }
}
#endif

TEST_P(GgmlProductTest, WhatIsNotFiniteStaysInItsRow) {
  const std::int64_t cols = 2 * numbers_of(format());
  const Blocks weights = random_blocks(format(), 40, cols, 6);
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const GgmlMatrix w(weights.view(), order());
    auto h = inputs(4, cols, 0.1, false);
    h.set(1, 3, std::numeric_limits<float>::quiet_NaN());
    h.set(2, cols - 1, -std::numeric_limits<float>::infinity());
    for (std::int64_t k = 0; k < cols; ++k) h.set(3, k, 1e-38F);  // 127 / 1e-38 is infinite
    TestMatrix<float> y(4, 40), alone(4, 40);
    multiply(context, h.view(), w, y.view());
    for (std::int64_t r = 0; r < 4; ++r) {
      multiply(context, {h.view().row<float>(r), DType::f32, 1, cols}, w,
               {alone.view().row<float>(r), DType::f32, 1, 40});
    }
    for (std::int64_t d = 0; d < 40; ++d) {
      EXPECT_EQ(alone.value(0, d), y.value(0, d));
      EXPECT_TRUE(std::isfinite(y.value(0, d)));
      for (const auto* of : {&y, &alone}) {
        EXPECT_TRUE(std::isnan(of->value(1, d)));
        EXPECT_FALSE(std::isfinite(of->value(2, d)));
        EXPECT_TRUE(!rounded() || std::isnan(of->value(2, d)));
        EXPECT_TRUE(rounded() ? of->value(3, d) == 0 : std::isfinite(of->value(3, d)));
      }
    }
  }
}

TEST_P(GgmlProductTest, ThreadsOfTheCallersGiveTheSameBits) {
  const std::int64_t cols = 3 * numbers_of(format());
  const Blocks weights = random_blocks(format(), 300, cols, 10);
  const auto h = inputs(70, cols, 0.1, true);
  ThreadExecutor executor;
  Context own({.threads = 3, .tier = {}, .executor = executor.executor()});
  Context openmp({.threads = 3, .tier = {}});
  const GgmlMatrix w(weights.view(), order(), &own);
  TestMatrix<float> y(70, 300), expected(70, 300);
  multiply(own, h.view(), w, y.view());
  multiply(openmp, h.view(), w, expected.view());
  EXPECT_TRUE(same(y, expected));
  EXPECT_GT(executor.calls(), 0);
}

TEST_P(GgmlTest, ErrorsSayWhatWasExpected) {
  const std::int64_t numbers = numbers_of(format());
  const std::string whole = "expected at least one row of whole blocks of " +
                            std::to_string(numbers) + " numbers, as " + name_of(format()) +
                            " has them, got [";
  const auto message = [&](const GgmlView& view) {
    return message_of([&] { const GgmlMatrix w(view, order()); });
  };
  Blocks weights = random_blocks(format(), 2, numbers, 7);
  GgmlView view = weights.view();
  view.cols = numbers - 16;
  EXPECT_EQ(message(view),
            "twell::GgmlMatrix: weight: " + whole + "2, " + std::to_string(numbers - 16) + "]");
  view.rows = 0;
  EXPECT_NE(message(view), "");
  EXPECT_EQ(message({format(), nullptr, 1, numbers}), "twell::GgmlMatrix: weight: blocks are null");

  const GgmlMatrix w(weights.view(), order());
  Context context({.threads = 1, .tier = {}});
  const auto h = inputs(1, numbers + 1, 1, false);
  TestMatrix<float> y(1, 2);
  EXPECT_EQ(message_of([&] { ggml_matmul(context, h.view(), w, y.view()); }),
            "twell::ggml_matmul: x: expected f32 [1, " + std::to_string(numbers) +
                "], got f32 [1, " + std::to_string(numbers + 1) + "]");

  weights.each([](GgmlBlock& block) { block.scale = half_of_float(1e9F); });
  EXPECT_EQ(message(weights.view()),
            "twell::GgmlMatrix: weight: a scale or minimum of row 0 is not finite");
}

}  // namespace
}  // namespace twell
