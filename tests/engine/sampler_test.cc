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
