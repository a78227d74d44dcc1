// The sampler draws from the distribution that its options describe, and reproducibly.
#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "twell/status.h"

namespace twell::lm {
namespace {

constexpr int kDraws = 20000;

std::vector<int> histogram(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits))];
  return counts;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(x / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Five standard deviations of a binomial count: a false alarm once in two million.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& p) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double deviation = std::sqrt(kDraws * p[i] * (1 - p[i]));
    EXPECT_NEAR(counts[i], kDraws * p[i], 5 * deviation) << "token " << i;
  }
}

const std::vector<float> kLogits = {0.3F, -1.0F, 2.0F, 1.5F, -4.0F, 0.0F, 1.4F};

TEST(Sampler, GreedyTakesTheLargestAndTheFirstOfEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(kLogits), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0F, 3.0F, 3.0F}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-5.0F}), 0);
}

TEST(Sampler, TemperatureScalesTheLogits) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    expect_distribution(histogram({.temperature = temperature, .seed = 3}, kLogits),
                        softmax(kLogits, temperature));
  }
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  const auto p = softmax(kLogits, 1.0);
  const double kept = p[2] + p[3] + p[6];
  expect_distribution(histogram({.temperature = 1.0, .top_k = 3, .seed = 4}, kLogits),
                      {0, 0, p[2] / kept, p[3] / kept, 0, 0, p[6] / kept});
  expect_distribution(histogram({.temperature = 1.0, .top_k = 100, .seed = 4}, kLogits), p);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const auto p = softmax(kLogits, 1.0);  // 2: 0.42, 3: 0.25, 6: 0.23, 0: 0.08
  ASSERT_LT(p[2] + p[3], 0.7);
  ASSERT_GT(p[2] + p[3] + p[6], 0.7);
  const double kept = p[2] + p[3] + p[6];
  expect_distribution(histogram({.temperature = 1.0, .top_p = 0.7, .seed = 5}, kLogits),
                      {0, 0, p[2] / kept, p[3] / kept, 0, 0, p[6] / kept});
  // At least one, however small top_p is.
  EXPECT_EQ(histogram({.temperature = 1.0, .top_p = 1e-9, .seed = 5}, kLogits)[2], kDraws);
}

// A vocabulary of thousands, from flat to steep, where the sum is reached within a crowd of nearly
// equal tokens: exactly the smallest set is drawn, in its proportions.
TEST(Sampler, TopPOfALargeVocabulary) {
  for (const double spread : {0.0, 0.01, 1.0, 10.0}) {
    for (const double top_p : {0.05, 0.5, 0.95}) {
      Random random(11);
      std::vector<float> logits(1000);
      for (float& x : logits) x = static_cast<float>(spread * random.normal());
      const auto p = softmax(logits, 0.7);
      std::vector<std::size_t> order(p.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
      // The sums of the two sides may round differently in the last tokens' favour or not.
      std::size_t count = 0;
      double kept = 0.0;
      while (kept < top_p) kept += p[order[count++]];
      std::vector<double> rank(p.size());
      for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<double>(i);

      Sampler sampler({.temperature = 0.7, .top_p = top_p, .seed = 8});
      constexpr int kBlocks = 4;  // of the kept tokens by rank: each has its share of the draws
      std::vector<int> drawn(kBlocks, 0);
      std::vector<double> share(kBlocks, 0.0);
      const auto block = [&](double r) {
        return static_cast<std::size_t>(r * kBlocks / static_cast<double>(count + 1));
      };
      for (std::size_t i = 0; i < count; ++i) {
        share[block(static_cast<double>(i))] += p[order[i]] / kept;
      }
      double furthest = 0.0;
      for (int i = 0; i < kDraws; ++i) {
        const double r = rank[static_cast<std::size_t>(sampler.sample(logits))];
        furthest = std::max(furthest, r);
        ASSERT_LE(r, static_cast<double>(count)) << "spread " << spread << ", top_p " << top_p;
        ++drawn[block(r)];
      }
      for (std::size_t b = 0; b < kBlocks; ++b) {
        const double deviation = std::sqrt(kDraws * share[b] * (1 - std::min(1.0, share[b])));
        EXPECT_NEAR(drawn[b], kDraws * share[b], 5 * deviation + 1e-6 * kDraws)
            << "spread " << spread << ", top_p " << top_p;
      }
      // All of the set can be drawn: its last eighth of probability is.
      double tail = 0.0;
      std::size_t reached = count;
      while (reached > 1 && tail + p[order[reached - 1]] < kept / 8) tail += p[order[--reached]];
      EXPECT_GE(furthest, static_cast<double>(reached) - 1);
    }
  }
}

TEST(Sampler, VerySmallTemperatureIsTheLargestLogit) {
  for (const double temperature : {1e-3, 1e-300, 5e-324}) {
    for (const double top_p : {1.0, 0.5}) {
      Sampler sampler({.temperature = temperature, .top_p = top_p, .seed = 1});
      for (int i = 0; i < 20; ++i) EXPECT_EQ(sampler.sample(kLogits), 2);
    }
  }
}

TEST(Sampler, LargestIsFoundAnywhere) {
  Sampler sampler({});
  for (const std::size_t size : {1U, 15U, 16U, 17U, 33U, 100U}) {
    for (std::size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -3.0F);
      logits[at] = -2.0F;
      EXPECT_EQ(sampler.sample(logits), static_cast<std::int64_t>(at));
      logits[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_THROW(sampler.sample(logits), Error);
    }
  }
}

TEST(Sampler, TopPActsOnWhatTopKLeft) {
  const auto p = softmax(kLogits, 1.0);
  // Of the two likeliest the first alone has p2 / (p2 + p3) > 0.6 of what is left.
  ASSERT_GT(p[2] / (p[2] + p[3]), 0.6);
  EXPECT_EQ(histogram({.temperature = 1.0, .top_k = 2, .top_p = 0.6, .seed = 6}, kLogits)[2],
            kDraws);
}

TEST(Sampler, SameSeedSameTokensAndSequencesDiffer) {
  const auto draw = [](std::uint64_t seed, std::int64_t sequence) {
    Sampler sampler({.temperature = 1.0, .seed = seed}, sequence);
    std::vector<std::int64_t> out;
    for (int i = 0; i < 64; ++i) out.push_back(sampler.sample(kLogits));
    return out;
  };
  EXPECT_EQ(draw(1, 0), draw(1, 0));
  EXPECT_NE(draw(1, 0), draw(2, 0));
  EXPECT_NE(draw(1, 0), draw(1, 1));
  EXPECT_NE(draw(1, 1), draw(1, 2));
}

// The same on every platform: draws of an equal distribution are thresholds of the generator alone.
TEST(Sampler, KnownDraws) {
  Sampler sampler({.temperature = 1.0, .seed = 1234567});
  const std::vector<float> equal(10, 0.0F);
  std::vector<std::int64_t> out;
  for (int i = 0; i < 3; ++i) out.push_back(sampler.sample(equal));
  // The reference generator's first numbers over 2^64: 0.350, 0.174, 0.532.
  EXPECT_EQ(out, (std::vector<std::int64_t>{3, 1, 5}));
}

TEST(Sampler, ExtremeLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  Sampler sampler({.temperature = 1.0, .top_p = 0.9, .seed = 1});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.sample(std::vector<float>{-infinity, 1e30F, -1e30F, -infinity}), 1);
  }
  Sampler cold({.temperature = 1e-6, .seed = 1});
  EXPECT_EQ(cold.sample(kLogits), 2);
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Sampler, MistakesAreErrors) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto make = [](SamplingOptions options) { Sampler sampler(options); };
  EXPECT_THAT(message_of([&] { make({.temperature = -1.0}); }), testing::HasSubstr("temperature"));
  EXPECT_THAT(message_of([&] { make({.temperature = nan}); }), testing::HasSubstr("temperature"));
  EXPECT_THAT(message_of([&] { make({.top_k = -1}); }), testing::HasSubstr("top_k"));
  EXPECT_THAT(message_of([&] { make({.top_p = 0.0}); }), testing::HasSubstr("top_p"));
  EXPECT_THAT(message_of([&] { make({.top_p = 1.5}); }), testing::HasSubstr("top_p"));
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature});
    EXPECT_THAT(message_of([&] {
                  sampler.sample(std::vector<float>{1.0F, static_cast<float>(nan), 0.0F});
                }),
                testing::HasSubstr("NaN"));
    EXPECT_THAT(message_of([&] { sampler.sample({}); }), testing::HasSubstr("no logits"));
  }
}

}  // namespace
}  // namespace twell::lm
