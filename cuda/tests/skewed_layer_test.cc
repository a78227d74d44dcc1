// The benchmark's layer is as sparse as it is asked to be, and skewed.
#include "cuda/bench/skewed_layer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twell/dtype.h"

namespace twell::bench {
namespace {

TEST(SkewedLayer, HasTheChosenActivity) {
  constexpr std::int64_t kTokens = 400;
  constexpr std::int64_t kDepth = 64;
  constexpr std::int64_t kHidden = 1000;
  const SkewedLayer layer = make_skewed_layer(kTokens, kDepth, kHidden, 20, 3);
  const auto value = [](std::uint16_t bits) { return static_cast<float>(bf16::from_bits(bits)); };
  std::vector<int> fired(kHidden);
  for (std::int64_t r = 0; r < kTokens; ++r) {
    for (std::int64_t n = 0; n < kHidden; ++n) {
      float sum = 0.0F;
      for (std::int64_t k = 0; k < kDepth; ++k) {
        sum += value(layer.x[static_cast<std::size_t>(r * kDepth + k)]) *
               value(layer.gate[static_cast<std::size_t>(n * kDepth + k)]);
      }
      fired[static_cast<std::size_t>(n)] += sum > 0 ? 1 : 0;
    }
  }
  double total = 0.0;
  for (int f : fired) total += f;
  // The level of tokens spreads a row's count by about a half: a mean of 400 rows is within 10 %.
  EXPECT_NEAR(total / kTokens, 20.0, 2.0);
  std::sort(fired.rbegin(), fired.rend());
  double top = 0.0;
  for (int i = 0; i < 50; ++i) top += fired[static_cast<std::size_t>(i)];
  EXPECT_GT(top / total, 0.3);                                // 5 % of the neurons
  EXPECT_GE(std::count(fired.begin(), fired.end(), 0), 250);  // the dead ones
}

}  // namespace
}  // namespace twell::bench
