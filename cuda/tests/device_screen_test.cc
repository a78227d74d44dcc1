// When a layer on a GPU has a screen, and when it has it no longer.
#include "cuda/layer/device_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "cuda/layer/count_in_flight.h"
#include "tests/support/slow_runtime.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::SlowRuntime;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr FfnShape kShape{4, 100, true, DType::bf16};
constexpr std::int64_t kRows = DeviceScreen::kRows;
constexpr std::int64_t kBytes = 640;  // of the screens made here

at::Tensor inputs(std::int64_t rows) {
  return at::arange(rows * kShape.width, at::kFloat)
      .view({rows, kShape.width})
      .remainder(7)
      .to(at::kBFloat16);
}
at::Tensor count_of(std::int64_t count) { return at::scalar_tensor(count, at::kLong); }

// Makes the screen; each row then has so many candidates.
struct Maker {
  explicit Maker(std::int64_t candidates) : left(candidates) {}
  void operator()(DeviceScreen& screen) {
    screen.make(
        [&](const at::Tensor& a) {
          axis = a;
          return at::zeros({kBytes}, at::kByte);
        },
        [&](const at::Tensor& s, const at::Tensor& x) {
          EXPECT_EQ(s.numel(), kBytes);
          asked.push_back(x);
          return count_of(left * x.size(0));
        });
  }
  std::int64_t left;
  at::Tensor axis;
  std::vector<at::Tensor> asked;
};

std::vector<std::int64_t> served(const DeviceScreen& screen) {
  std::vector<std::int64_t> rows;
  for (std::int64_t n = 0; n <= 40; ++n) {
    if (screen.serves(n)) rows.push_back(n);
  }
  return rows;
}

TEST(DeviceScreen, TheAxisIsTheSumOfWhatWasCounted) {
  SlowRuntime runtime;
  runtime.screens = {0.3, 0.2, 0.1, 0.05, 0.04};
  DeviceScreen screen(kShape, runtime);
  at::Tensor first = inputs(50);
  const at::Tensor second = inputs(90) + 1;
  const at::Tensor kept = at::cat({first, second}).narrow(0, 0, kRows).clone();
  const at::Tensor sum = first.to(at::kFloat).sum(0) + second.to(at::kFloat).sum(0);
  screen.saw(first);
  first.fill_(100);  // the caller's
  screen.saw(inputs(0));
  runtime.recording = true;
  screen.saw(inputs(40));
  runtime.recording = false;
  screen.saw(second);
  Maker maker(0);
  maker(screen);
  EXPECT_EQ(maker.axis.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(maker.axis, sum));
  EXPECT_TRUE(at::equal(at::cat(maker.asked), kept));
  for (const at::Tensor& x : maker.asked) EXPECT_LE(x.size(0), 5) << "as the plan screens";
  EXPECT_LE(maker.asked.size(), 13U);
  Maker again(0);
  again(screen);
  EXPECT_FALSE(again.axis.defined()) << "made once";
  EXPECT_EQ(runtime.waits, 0);
}

TEST(DeviceScreen, ServesOnceItsCandidatesHaveBeenCounted) {
  SlowRuntime runtime;
  runtime.screens = {0.3, 0.2, 0.1, 0.05};
  DeviceScreen screen(kShape, runtime);
  EXPECT_EQ(screen.describe(), "");
  screen.saw(inputs(kRows));
  EXPECT_EQ(screen.bytes(), 0);
  Maker maker(10);  // of 100
  maker(screen);
  EXPECT_EQ(screen.bytes(), kBytes);
  screen.look();
  EXPECT_THAT(served(screen), ElementsAre()) << "the count is on its way";
  EXPECT_THAT(screen.describe(), HasSubstr("not counted yet"));
  runtime.done = true;
  runtime.recording = true;
  screen.look();
  EXPECT_THAT(served(screen), ElementsAre()) << "no event is asked while recording";
  runtime.recording = false;
  screen.look();
  EXPECT_THAT(served(screen), ElementsAre(1, 2, 3)) << "each number of rows has its limit";
  EXPECT_FALSE(screen.take(4).defined());
  EXPECT_EQ(screen.take(3).numel(), kBytes);
  EXPECT_EQ(screen.describe(), "a screen for up to 3 tokens left 10.0 %");
  EXPECT_EQ(runtime.waits, 0);
}

TEST(DeviceScreen, IsGivenUpWhereItLeavesTooMany) {
  SlowRuntime runtime;
  runtime.done = true;
  runtime.screens = {0.3, 0.2};
  for (const std::int64_t left : {30, 31}) {
    DeviceScreen screen(kShape, runtime);
    screen.saw(inputs(kRows));
    Maker maker(left);
    maker(screen);
    screen.look();
    EXPECT_EQ(screen.serves(1), left == 30);
    EXPECT_FALSE(screen.serves(2));
    EXPECT_EQ(screen.bytes(), left == 30 ? kBytes : 0);
    EXPECT_THAT(screen.describe(), HasSubstr(left == 30 ? "a screen for up to 1 tokens"
                                                        : "no screen, it left 31.0 %"));
    Maker again(0);
    again(screen);
    EXPECT_FALSE(again.axis.defined()) << "for good";
  }
}

TEST(DeviceScreen, FollowsTheCandidatesOfCalls) {
  for (const bool recorded : {false, true}) {
    SlowRuntime runtime;
    runtime.screens = {0.3, 0.2};
    DeviceScreen screen(kShape, runtime);
    screen.saw_candidates(count_of(100), 1);  // before there is one
    screen.saw(inputs(kRows));
    Maker maker(10);
    maker(screen);
    runtime.done = true;
    screen.look();
    EXPECT_TRUE(screen.serves(2));
    at::Tensor weak;
    {
      runtime.recording = recorded;
      weak = screen.take(1);
      runtime.recording = false;
    }
    // One token of 64: a first position, which fires everything, does not end it.
    screen.saw_candidates(count_of(100), 1);
    screen.look();
    EXPECT_TRUE(screen.serves(2));
    for (int call = 0; call < 10; ++call) {
      screen.saw_candidates(count_of(100), 1);
      screen.look();
    }
    EXPECT_THAT(served(screen), ElementsAre(1)) << "0.1 + 0.9 · (1 − (63/64)¹¹) = 0.243";
    for (int call = 0; call < 6; ++call) {
      screen.saw_candidates(count_of(100), 1);
      screen.look();
    }
    EXPECT_THAT(served(screen), ElementsAre()) << "0.311";
    EXPECT_FALSE(screen.take(1).defined());
    // A recording goes on reading it.
    EXPECT_EQ(screen.bytes(), recorded ? kBytes : 0);
    EXPECT_EQ(weak.use_count(), recorded ? 2U : 1U);
    EXPECT_EQ(runtime.waits, 0);
  }
}

TEST(DeviceScreen, WithoutMemoryThereIsNone) {
  SlowRuntime runtime;
  runtime.done = true;
  runtime.screens = {0.3};
  const auto fails_with = [&](bool making, const std::function<void()>& fail) {
    DeviceScreen screen(kShape, runtime);
    screen.saw(inputs(kRows));
    int tries = 0;
    for (int call = 0; call < 2; ++call) {
      screen.make(
          [&](const at::Tensor&) {
            ++tries;
            if (making) fail();
            return at::zeros({kBytes}, at::kByte);
          },
          [&](const at::Tensor&, const at::Tensor& x) {
            fail();
            return count_of(x.size(0));
          });
      screen.saw(inputs(kRows));
    }
    screen.look();
    EXPECT_EQ(tries, 1);
    EXPECT_FALSE(screen.serves(1));
    EXPECT_EQ(screen.bytes(), 0);
    EXPECT_EQ(screen.describe(), "no memory for a screen");
  };
  for (const bool making : {true, false}) {
    fails_with(making, [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory"); });
    fails_with(making, [] { throw Error(ErrorKind::out_of_memory, "screen_weight", "no memory"); });
  }
  EXPECT_THROW(
      fails_with(true, [] { throw Error(ErrorKind::invalid_argument, "screen_weight", "rows"); }),
      Error);
}

TEST(DeviceScreen, IsNotMadeWhereNoPlanTakesIt) {
  SlowRuntime runtime;
  runtime.done = true;
  for (const bool seen : {true, false}) {
    if (!seen) runtime.screens = {0.3};  // but there is nothing to make it by
    DeviceScreen screen(kShape, runtime);
    if (seen) screen.saw(inputs(kRows));
    Maker maker(0);
    maker(screen);
    EXPECT_FALSE(maker.axis.defined());
    EXPECT_EQ(screen.describe(), "");
    EXPECT_FALSE(screen.serves(1));
  }
}

}  // namespace
}  // namespace twell::lm
