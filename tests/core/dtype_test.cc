#include "twell/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twell {
namespace {

TEST(Bf16, EveryPatternSurvivesARoundTripThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bf16 value = bf16::from_bits(static_cast<std::uint16_t>(bits));
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(wide))));
    } else {
      EXPECT_EQ(bf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16(1.0F + 0x1p-8F).bits, 0x3f80);                     // tie, even below
  EXPECT_EQ(bf16(1.0F + 0x1p-7F + 0x1p-8F).bits, 0x3f82);           // tie, even above
  EXPECT_EQ(bf16(1.0F + 0x1p-8F + 0x1p-20F).bits, 0x3f81);          // above the tie
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // overflows to infinity
  EXPECT_EQ(bf16(-0.0F).bits, 0x8000);
}

TEST(Bf16, NanNeverBecomesInfinity) {
  const float nan = std::bit_cast<float>(0x7f800001U);  // a payload that truncation would lose
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xffffffffU)))));
}

}  // namespace
}  // namespace twell
