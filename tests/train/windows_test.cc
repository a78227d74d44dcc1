#include "train/windows.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "corpus/token_stream.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

TEST(WindowSplit, CoversEveryWindowOnce) {
  for (const std::int64_t tokens : {9, 17, 100, 1000}) {
    for (const double fraction : {0.0, 0.01, 0.1, 0.5}) {
      const WindowSplit split(tokens, 8, fraction);
      std::set<std::int64_t> begins;
      for (std::int64_t i = 0; i < split.train_windows(); ++i) begins.insert(split.train_begin(i));
      for (std::int64_t i = 0; i < split.validation_windows(); ++i) {
        begins.insert(split.validation_begin(i));
      }
      const std::int64_t windows = (tokens - 1) / 8;
      EXPECT_EQ(static_cast<std::int64_t>(begins.size()), windows) << tokens << " " << fraction;
      EXPECT_EQ(split.train_windows() + split.validation_windows(), windows);
      EXPECT_EQ(*begins.begin(), 0);
      EXPECT_EQ(*begins.rbegin(), (windows - 1) * 8);
      EXPECT_GE(split.train_windows(), 1);
      if (fraction > 0 && windows > 1) {
        EXPECT_GE(split.validation_windows(), 1);
      }
    }
  }
}

TEST(WindowSplit, SaysHowMuchTextIsMissing) {
  try {
    const WindowSplit split(64, 64, 0.01);
    FAIL() << "64 tokens are one too few for a window of 64 and its last target";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("64 tokens"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos) << error.what();
  }
  EXPECT_THROW(WindowSplit(0, 64, 0.01), Error);
  EXPECT_THROW(WindowSplit(1000, 10, 0.6), Error);
}

TEST(ShuffledWindows, VisitsAllOncePerEpochInAnotherOrder) {
  ShuffledWindows windows(50, 3);
  std::vector<std::int64_t> first, second;
  for (int i = 0; i < 50; ++i) first.push_back(windows.next());
  for (int i = 0; i < 50; ++i) second.push_back(windows.next());
  EXPECT_EQ(std::set<std::int64_t>(first.begin(), first.end()).size(), 50U);
  EXPECT_EQ(std::set<std::int64_t>(second.begin(), second.end()).size(), 50U);
  EXPECT_NE(first, second);
  std::vector<std::int64_t> sorted(50);
  for (int i = 0; i < 50; ++i) sorted[static_cast<std::size_t>(i)] = i;
  EXPECT_NE(first, sorted);
}

TEST(ShuffledWindows, ContinuesWhereItStood) {
  ShuffledWindows all(7, 11);
  std::vector<std::int64_t> order;
  for (int i = 0; i < 30; ++i) order.push_back(all.next());
  for (int stop = 0; stop < 30; ++stop) {
    ShuffledWindows resumed(7, 11);
    resumed.seek(stop);
    for (int i = stop; i < 30; ++i) EXPECT_EQ(resumed.next(), order[static_cast<std::size_t>(i)]);
  }
  ShuffledWindows other(7, 12);
  std::vector<std::int64_t> different;
  for (int i = 0; i < 30; ++i) different.push_back(other.next());
  EXPECT_NE(order, different);
}

TEST(TokenStream, RefusesToReadBeyondItsEnd) {
  const TokenStream stream(std::vector<std::int32_t>{5, 6, 7});
  std::vector<std::int64_t> out(2);
  stream.read(1, out);
  EXPECT_EQ(out, (std::vector<std::int64_t>{6, 7}));
  EXPECT_THROW(stream.read(2, out), Error);
  EXPECT_THROW(stream.read(-1, out), Error);
}

}  // namespace
}  // namespace twell::lm
