// Counts of a device arrive when they arrive.
#include "cuda/layer/count_in_flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "tests/support/slow_runtime.h"

namespace twell::lm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(CountInFlight, IsReadWhenItHasArrivedAndNeverWaitedFor) {
  test::SlowRuntime runtime;
  std::vector<std::pair<std::int64_t, std::int64_t>> arrived;
  CountInFlight counts(
      runtime, [&](std::int64_t count, std::int64_t rows) { arrived.emplace_back(count, rows); });
  const auto send = [&](std::int64_t count, std::int64_t rows) {
    counts.send(at::scalar_tensor(count, at::kLong), rows);
  };
  send(30, 64);
  counts.look();
  EXPECT_THAT(arrived, IsEmpty()) << "not there yet";
  send(80, 64);  // passed over: one is on its way
  runtime.done = true;
  runtime.recording = true;
  counts.look();
  EXPECT_THAT(arrived, IsEmpty()) << "events are not asked while recording";
  runtime.recording = false;
  counts.look();
  counts.look();
  EXPECT_THAT(arrived, ElementsAre(Pair(30, 64)));
  runtime.recording = true;
  send(90, 64);
  runtime.recording = false;
  send(5, 0);
  counts.look();
  EXPECT_THAT(arrived, ElementsAre(Pair(30, 64))) << "nothing is counted while recording";
  send(7, 2);
  send(8, 3);  // takes the one before in
  EXPECT_THAT(arrived, ElementsAre(Pair(30, 64), Pair(7, 2)));
  EXPECT_EQ(runtime.waits, 0);
}

}  // namespace
}  // namespace twell::lm
