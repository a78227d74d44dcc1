// The order of neurons, and what a transposition is.
#include "twell/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "twell/status.h"
#include "twell/transpose.h"
#include "twell/tuning.h"

namespace twell {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Findings, TheMostPopularFirstAndNoInfiniteRowAmongThem) {
  const LayerFindings findings{100, {}, {60, 2, 10, 70, 3, 2}, {}};
  EXPECT_DOUBLE_EQ(findings.density(), 147 / 600.0);
  const bool finite[] = {false, true, true, false, true, true};
  const NeuronOrder order = order_of(findings, finite);
  EXPECT_THAT(order.order, ElementsAre(2, 4, 1, 5, 0, 3)) << "equals as they lie";
  EXPECT_THAT(order.rates, ElementsAre(0.1, 0.03, 0.02, 0.02, 0.0, 0.0));
  EXPECT_EQ(order.finite, 4);
  EXPECT_EQ(LayerFindings{}.density(), 0.0);
  EXPECT_THAT(test::message_of([&] { order_of(findings, {finite, 5}); }), HasSubstr("finite"));
}

TEST(Findings, AScreenPaysUpToTheLimitOfTheTier) {
  for (const CpuTier tier : kAllCpuTiers) {
    const double limit = tuning_of(tier).screen_limit;
    EXPECT_EQ(screen_pays(tier, limit), limit > 0.0);
    EXPECT_FALSE(screen_pays(tier, limit + 1e-9));
    EXPECT_FALSE(screen_pays(tier, {}));
  }
}

template <class T>
void transposes(std::int64_t rows, std::int64_t cols) {
  const auto in = test::random_matrix<T>(rows, cols, 3, 1.0F, 2);
  test::TestMatrix<T> out(cols, rows, 5);
  const WeightView view = transpose(in.view(), out.view().data, out.view().row_stride);
  EXPECT_EQ(view.rows, cols);
  EXPECT_EQ(view.cols, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.value(c, r), in.value(r, c));
  }
}

TEST(Transpose, IsExactAtTails) {
  for (const std::int64_t rows : {1, 31, 32, 33, 100}) {
    for (const std::int64_t cols : {1, 31, 32, 65}) {
      transposes<float>(rows, cols);
      transposes<bf16>(rows, cols);
    }
  }
  const test::TestMatrix<float> in(2, 3);
  test::TestMatrix<float> out(3, 2);
  EXPECT_THAT(test::message_of([&] { transpose(in.view(), out.view().data, 1); }),
              HasSubstr("out: row stride 1 is smaller than its 2 columns"));
}

}  // namespace
}  // namespace twell
