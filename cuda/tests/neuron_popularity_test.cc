// Which neurons come first, and how many of them are hot.
#include "cuda/layer/neuron_popularity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "tests/support/slow_runtime.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::SlowRuntime;
using testing::ElementsAre;
using Numbers = std::vector<std::int64_t>;

constexpr FfnShape kShape{3, 6, true, DType::bf16};
constexpr std::int64_t kTokens = NeuronPopularity::kTokens;

at::Tensor finite_down() { return at::ones({kShape.neurons, kShape.width}).to(at::kBFloat16); }

Numbers numbers_of(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return {data, data + tensor.numel()};
}

// The order that the popularity asks for now; empty: for none.
Numbers order_of(NeuronPopularity& popularity) {
  Numbers order;
  popularity.order_when_arrived([&](const at::Tensor& asked) { order = numbers_of(asked); });
  return order;
}

TEST(NeuronPopularity, TheMostPopularFirstAndNoInfiniteRowAmongTheHot) {
  SlowRuntime runtime;
  runtime.done = true;
  runtime.hot = [](const FfnShape& shape, std::int64_t, const std::vector<double>&) {
    return HotChoice{shape.neurons, 0.5};
  };
  NeuronPopularity popularity(kShape, runtime);
  at::Tensor down = finite_down();
  down[3][1] = std::numeric_limits<float>::infinity();
  down[0][2] = std::numeric_limits<float>::quiet_NaN();
  // Sums over calls decide; 1 and 5 fire equally often, 0 and 3 most.
  popularity.saw(at::tensor({600, 0, 100, 700, 3, 0}, at::kLong), 1000, down);
  popularity.saw(at::tensor({0, 20, 0, 0, 0, 20}, at::kLong), kTokens - 1000, down);
  EXPECT_EQ(popularity.hot(kTokens).count, 0);
  EXPECT_THAT(popularity.by_model({10, 11, 12, 13, 14, 15}), ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_THAT(order_of(popularity), ElementsAre(2, 1, 5, 4, 0, 3));
  EXPECT_TRUE(popularity.ordered());
  EXPECT_THAT(numbers_of(popularity.places()), ElementsAre(4, 1, 0, 5, 3, 2));
  EXPECT_THAT(popularity.by_model({10, 11, 12, 13, 14, 15}), ElementsAre(14, 11, 10, 15, 13, 12));
  EXPECT_EQ(popularity.hot(kTokens).count, 4) << "all but the two";
  EXPECT_EQ(popularity.hot(kTokens).time, 0.5);
  const double n = kTokens;
  EXPECT_THAT(runtime.asked.front().rates, ElementsAre(100 / n, 20 / n, 20 / n, 3 / n, 0.0, 0.0));
  EXPECT_THAT(order_of(popularity), ElementsAre()) << "once";
}

TEST(NeuronPopularity, WaitsForNothing) {
  SlowRuntime runtime;
  NeuronPopularity popularity(kShape, runtime);
  const at::Tensor counts = at::tensor({1, 2, 3, 4, 5, 6}, at::kLong);
  runtime.recording = true;
  popularity.saw(counts, kTokens, finite_down());
  EXPECT_EQ(popularity.tokens(), 0) << "recorded work is not counted";
  runtime.recording = false;
  popularity.saw(counts, kTokens - 1, finite_down());
  runtime.done = true;
  EXPECT_THAT(order_of(popularity), ElementsAre()) << "a token is missing";
  runtime.done = false;
  popularity.saw(counts, 1, finite_down());
  EXPECT_THAT(order_of(popularity), ElementsAre()) << "still on its way";
  popularity.saw(at::tensor({900, 0, 0, 0, 0, 0}, at::kLong), 1000, finite_down());
  runtime.done = true;
  runtime.recording = true;
  EXPECT_THAT(order_of(popularity), ElementsAre()) << "weights stay while recording";
  runtime.recording = false;
  EXPECT_THAT(order_of(popularity), ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_EQ(popularity.tokens(), kTokens);
  EXPECT_EQ(runtime.waits, 0);
}

TEST(NeuronPopularity, WantsPromptsUntilItHasEnough) {
  SlowRuntime runtime;
  NeuronPopularity popularity(kShape, runtime);
  EXPECT_FALSE(popularity.wants(NeuronPopularity::kFewestRows - 1));
  EXPECT_TRUE(popularity.wants(NeuronPopularity::kFewestRows));
  runtime.recording = true;
  EXPECT_FALSE(popularity.wants(1000));
  runtime.recording = false;
  popularity.saw(at::zeros({kShape.neurons}, at::kLong), kTokens, finite_down());
  EXPECT_FALSE(popularity.wants(1000));
}

TEST(NeuronPopularity, WithoutMemoryTheNeuronsStayAsTheyAre) {
  for (const bool of_an_operator : {false, true}) {
    SlowRuntime runtime;
    runtime.done = true;
    NeuronPopularity popularity(kShape, runtime);
    EXPECT_TRUE(popularity.saw(at::tensor({1, 2, 3, 4, 5, 6}, at::kLong), kTokens, finite_down()));
    EXPECT_FALSE(popularity.saw(at::tensor({1, 2, 3, 4, 5, 6}, at::kLong), 1, finite_down()));
    int tries = 0;
    for (int call = 0; call < 2; ++call) {
      const bool decided = popularity.order_when_arrived([&](const at::Tensor&) {
        ++tries;
        if (of_an_operator) throw Error(ErrorKind::out_of_memory, "pack_weight", "no memory");
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory");
      });
      EXPECT_EQ(decided, call == 0) << "the rows stay where they are from then on";
    }
    EXPECT_EQ(tries, 1);
    EXPECT_FALSE(popularity.ordered());
    EXPECT_EQ(popularity.hot(kTokens).count, 0);
  }
}

TEST(NeuronPopularity, AsksOnceForEachPowerOfTwo) {
  SlowRuntime runtime;
  runtime.done = true;
  runtime.hot = [](const FfnShape&, std::int64_t rows, const std::vector<double>&) {
    return HotChoice{rows >= 64 ? 2 : 0, 1.0};
  };
  NeuronPopularity popularity(kShape, runtime);
  popularity.saw(at::ones({kShape.neurons}, at::kLong), kTokens, finite_down());
  (void)order_of(popularity);
  EXPECT_EQ(popularity.hot(0).count, 0);
  for (const std::int64_t rows : {1, 2, 3, 42, 43, 63, 64, 85, 86, 170, 171, 1000}) {
    EXPECT_EQ(popularity.hot(rows).count, rows >= 43 ? 2 : 0) << rows;
    EXPECT_EQ(popularity.hot(rows).count, rows >= 43 ? 2 : 0) << rows;
  }
  Numbers asked;
  for (const auto& question : runtime.asked) asked.push_back(question.rows);
  EXPECT_THAT(asked, ElementsAre(1, 2, 4, 32, 64, 128, 256, 1024));
}

}  // namespace
}  // namespace twell::lm
