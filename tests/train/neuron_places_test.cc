// Which layers of a GPU train sparsely, and the order of their neurons.
#include "train/neuron_places.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "tests/support/slow_runtime.h"

namespace twell::lm {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers numbers(const at::Tensor& t) {
  const at::Tensor flat = t.flatten();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

class NeuronPlacesTest : public ::testing::Test {
 protected:
  static constexpr FfnShape kShape = {8, 5, true, DType::bf16};

  // Runs decide() and returns what was to be reordered.
  std::vector<std::pair<std::int64_t, Numbers>> decide(NeuronPlaces& places) {
    std::vector<std::pair<std::int64_t, Numbers>> out;
    places.decide(64, [&](std::int64_t layer, const at::Tensor& permutation) {
      out.emplace_back(layer, numbers(permutation));
    });
    return out;
  }
  void answer(const TrainingChoice& choice) {
    gpu_.training = [this, choice](const FfnShape& shape, std::int64_t rows,
                                   const std::vector<double>& rates) {
      EXPECT_EQ(shape.neurons, kShape.neurons);
      EXPECT_EQ(rows, 64);
      asked_.push_back(rates);
      return choice;
    };
  }

  test::SlowRuntime gpu_;
  std::vector<std::vector<double>> asked_;
};

TEST_F(NeuronPlacesTest, BeginsDenseInTheModelsOrder) {
  NeuronPlaces places(kShape, 2, gpu_);
  answer({true, 2});
  EXPECT_TRUE(decide(places).empty());
  EXPECT_TRUE(asked_.empty()) << "no layer was seen";
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_FALSE(places.choice(layer).sparse);
    EXPECT_EQ(numbers(places.from_model(layer)), (Numbers{0, 1, 2, 3, 4}));
  }
}

TEST_F(NeuronPlacesTest, NeuronsThatFireMostComeFirst) {
  NeuronPlaces places(kShape, 2, gpu_);
  answer({true, 2});
  places.saw(1, 10, Numbers{1, 0, 4, 0, 2});
  places.saw(1, 10, Numbers{1, 0, 4, 2, 2});  // adds up
  const auto moved = decide(places);
  ASSERT_EQ(moved.size(), 1U) << "the other layer was not seen";
  EXPECT_EQ(moved[0], (std::pair<std::int64_t, Numbers>{1, {2, 4, 0, 3, 1}}));
  EXPECT_EQ(asked_, (std::vector<std::vector<double>>{{0.4, 0.2, 0.1, 0.1, 0.0}}));
  EXPECT_TRUE(places.choice(1).sparse);
  EXPECT_EQ(places.choice(1).hot, 2);
  EXPECT_FALSE(places.choice(0).sparse);
  EXPECT_EQ(numbers(places.from_model(1)), (Numbers{2, 4, 0, 3, 1}));
  EXPECT_EQ(numbers(places.to_model(1)), (Numbers{2, 4, 0, 3, 1}));  // an involution, here
  EXPECT_EQ(places.by_model(1, {50, 40, 30, 20, 10}), (Numbers{30, 10, 50, 20, 40}));
  EXPECT_EQ(places.by_model(0, {50, 40, 30, 20, 10}), (Numbers{50, 40, 30, 20, 10}));

  // The next order is one of places: what was forgotten is not counted again, and neurons that fire
  // equally often stay as they lie.
  places.saw(1, 10, Numbers{0, 9, 0, 9, 0});
  const auto again = decide(places);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].second, (Numbers{3, 4, 0, 1, 2}));
  EXPECT_EQ(numbers(places.from_model(1)), (Numbers{3, 1, 2, 4, 0}));
  EXPECT_EQ(numbers(places.to_model(1)), (Numbers{4, 1, 2, 0, 3}));
  EXPECT_EQ(places.of(1, {0, 3, 4}), (Numbers{4, 0, 3}));
  EXPECT_EQ(places.by_model(1, {50, 40, 30, 20, 10}), (Numbers{10, 40, 30, 50, 20}));
  EXPECT_EQ(asked_.back(), (std::vector<double>{0.9, 0.9, 0.0, 0.0, 0.0}));
}

TEST_F(NeuronPlacesTest, DenseLayersStayAsTheyLie) {
  NeuronPlaces places(kShape, 1, gpu_);
  answer({true, 1});
  places.saw(0, 4, Numbers{0, 1, 2, 3, 4});
  EXPECT_EQ(decide(places).size(), 1U);
  answer({false, 0});
  places.saw(0, 4, Numbers{4, 3, 2, 1, 0});
  EXPECT_TRUE(decide(places).empty());
  EXPECT_FALSE(places.choice(0).sparse);
  EXPECT_EQ(numbers(places.from_model(0)), (Numbers{4, 3, 2, 1, 0}));
  // Nor does an order move that is right already.
  answer({true, 3});
  places.saw(0, 4, Numbers{0, 1, 2, 3, 4});
  EXPECT_TRUE(decide(places).empty());
  EXPECT_EQ(places.choice(0).hot, 3);
}

TEST_F(NeuronPlacesTest, ComesBackFromACheckpoint) {
  NeuronPlaces places(kShape, 2, gpu_);
  answer({true, 2});
  places.saw(1, 10, Numbers{0, 9, 0, 9, 1});
  decide(places);
  const Numbers orders = numbers(places.orders());
  EXPECT_EQ(orders, (Numbers{0, 1, 2, 3, 4, 1, 3, 4, 0, 2}));
  const NeuronPlaces fresh(kShape, 2, gpu_);
  const auto same = fresh.restored(orders, places.choices());
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(numbers(same->orders()), orders);
  EXPECT_FALSE(same->choice(0).sparse);
  EXPECT_TRUE(same->choice(1).sparse);
  EXPECT_EQ(same->choice(1).hot, 2);
  // What a CPU wrote.
  const auto none = places.restored({}, {});
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(numbers(none->orders()), (Numbers{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_FALSE(none->choice(1).sparse);

  const auto refused = [&](Numbers bad, const std::vector<TrainingChoice>& choices) {
    return !fresh.restored(bad, choices).has_value();
  };
  const std::vector<TrainingChoice> choices = places.choices();
  EXPECT_TRUE(refused({0, 1, 2, 3, 4, 1, 3, 4, 0, 0}, choices));
  EXPECT_TRUE(refused({0, 1, 2, 3, 4, 1, 3, 4, 0, 5}, choices));
  EXPECT_TRUE(refused({0, 1, 2, 3, -4, 1, 3, 4, 0, 2}, choices));
  EXPECT_TRUE(refused({0, 1, 2, 3, 4}, choices));
  EXPECT_TRUE(refused(orders, {choices[0]}));
  EXPECT_TRUE(refused(orders, {}));
  EXPECT_TRUE(refused(orders, {choices[0], {true, 6}}));
  EXPECT_TRUE(refused(orders, {choices[0], {true, -1}}));
}

}  // namespace
}  // namespace twell::lm
