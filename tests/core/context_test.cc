#include "twell/context.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;

TEST(Tier, NamesRoundTrip) {
  for (CpuTier tier : kAllCpuTiers) EXPECT_EQ(parse_cpu_tier(name_of(tier)), tier);
  EXPECT_NE(message_of([] { parse_cpu_tier("sse9"); }).find("portable, avx2, avx512, amx"),
            std::string::npos);
}

TEST(Tier, PortableIsAlwaysThereAndTheDefaultIsTheBest) {
  EXPECT_TRUE(cpu_tier_available(CpuTier::portable));
  unsetenv("TWELL_CPU_TIER");
  EXPECT_EQ(default_cpu_tier(), available_cpu_tiers().back());
}

TEST(Tier, EnvironmentForcesOrFails) {
  setenv("TWELL_CPU_TIER", "portable", 1);
  EXPECT_EQ(Context().tier(), CpuTier::portable);
  setenv("TWELL_CPU_TIER", "fastest", 1);
  EXPECT_NE(message_of([] { Context(); }).find("'fastest'"), std::string::npos);
  for (CpuTier tier : kAllCpuTiers) {
    if (cpu_tier_available(tier)) continue;
    setenv("TWELL_CPU_TIER", name_of(tier), 1);
    EXPECT_NE(message_of([] { Context(); }).find("not available"), std::string::npos);
    EXPECT_NE(message_of([&] { Context({.threads = 1, .tier = tier}); }).find("not available"),
              std::string::npos);
  }
  unsetenv("TWELL_CPU_TIER");
}

TEST(ContextTest, RefusesNegativeThreads) {
  EXPECT_NE(message_of([] { Context({.threads = -1, .tier = {}}); }).find("threads"),
            std::string::npos);
}

TEST(ContextTest, ScratchIsAlignedPrivateAndGrows) {
  Context context({.threads = 2, .tier = {}});
  auto* a = static_cast<char*>(context.scratch(0, 0, 100));
  auto* b = static_cast<char*>(context.scratch(1, 0, 100));
  EXPECT_NE(a, b);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0U);
  a[99] = 7;
  EXPECT_EQ(context.scratch(0, 0, 50), a);
  auto* c = static_cast<char*>(context.scratch(0, 0, 1 << 20));
  c[(1 << 20) - 1] = 1;
}

}  // namespace
}  // namespace twell
