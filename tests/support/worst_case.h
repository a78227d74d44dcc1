// Inputs that a screen's bound comes closest to being wrong about.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace twell::test {

// A row of whole numbers up to `levels`, which 8 bits hold exactly, whose product with `a` is a
// little more than 0.5 and with what `levels` leave out of `a` as large as its length allows: the
// worst case of the bound, met but for a few per cent.
inline std::vector<float> worst_case(const std::vector<float>& a, float levels) {
  const auto size = [](float x, float y) { return std::abs(x) < std::abs(y); };
  const float scale = std::abs(*std::max_element(a.begin(), a.end(), size)) / levels;
  std::vector<float> b;
  for (const float v : a) b.push_back(v - scale * std::nearbyint(v / scale));
  const float most = std::abs(*std::max_element(b.begin(), b.end(), size));
  double product = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    b[k] = std::nearbyint(b[k] / most * levels);
    product += double{a[k]} * double{b[k]};
  }
  for (int pass = 0; pass < 40; ++pass) {
    for (std::size_t k = 0; k < a.size(); ++k) {
      const double step = product <= 0.5 ? 1 : product - std::abs(double{a[k]}) > 0.5 ? -1 : 0;
      const float moved = b[k] + static_cast<float>(a[k] < 0 ? -step : step);
      // One of the largest stays, so that the scale is 1.
      if (step == 0 || std::abs(b[k]) == levels || std::abs(moved) >= levels) continue;
      b[k] = moved;
      product += step * std::abs(double{a[k]});
    }
  }
  EXPECT_GT(product, 0.5);
  EXPECT_LT(product, 2.0);
  return b;
}

}  // namespace twell::test
