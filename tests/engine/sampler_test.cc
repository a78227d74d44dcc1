// The sampler draws from the distribution that its options describe, and reproducibly.
#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/message_of.h"

namespace twell::lm {
namespace {

using test::message_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kLargestUniform = 1.0 - 0x1.0p-53;

const std::vector<float> kLogits = {0.3F, -1.0F, 2.0F, 1.5F, -4.0F, 0.0F, 1.4F};

at::Tensor row_of(const std::vector<float>& logits) { return at::tensor(logits).unsqueeze(0); }

std::int64_t sample(const std::vector<float>& logits, const SamplingOptions& options,
                    double uniform = 0.5) {
  return sample_rows(row_of(logits), options, at::full({1}, uniform, at::kDouble))
      .item<std::int64_t>();
}

// What the draws 0.5 / n, 1.5 / n, … pick.
at::Tensor sample_evenly(const std::vector<float>& logits, const SamplingOptions& options, int n) {
  return sample_rows(row_of(logits).expand({n, -1}), options,
                     (at::arange(n, at::kDouble) + 0.5) / n);
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature = 1.0) {
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(x / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Of even draws every token has its probability's share, give or take one at either end of its
// interval; tokens without probability have none.
void expect_shares(const SamplingOptions& options, const std::vector<double>& p) {
  constexpr int kDraws = 2000;
  const at::Tensor counts = at::bincount(sample_evenly(kLogits, options, kDraws), {},
                                         static_cast<std::int64_t>(p.size()));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto count = counts[static_cast<std::int64_t>(i)].item<double>();
    EXPECT_NEAR(count, kDraws * p[i], p[i] > 0 ? 1.0 : 0.0) << "token " << i;
  }
}

TEST(Sampler, GreedyTakesTheLargestAndTheFirstOfEquals) {
  EXPECT_EQ(sample(kLogits, {}), 2);
  EXPECT_EQ(sample({1.0F, 3.0F, 3.0F}, {}), 1);
  EXPECT_EQ(sample({-5.0F}, {}), 0);
}

TEST(Sampler, EveryTokenHasItsShareOfTheDraws) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    expect_shares({.temperature = temperature}, softmax(kLogits, temperature));
  }
  const auto p = softmax(kLogits);  // 2: 0.42, 3: 0.25, 6: 0.23, 0: 0.08
  const double three = p[2] + p[3] + p[6];
  const std::vector<double> of_three = {0, 0, p[2] / three, p[3] / three, 0, 0, p[6] / three};
  expect_shares({.temperature = 1.0, .top_k = 3}, of_three);
  expect_shares({.temperature = 1.0, .top_k = 100}, p);
  ASSERT_LT(p[2] + p[3], 0.7);
  ASSERT_GT(three, 0.7);
  expect_shares({.temperature = 1.0, .top_p = 0.7}, of_three);
  // Of the likeliest, 3 has 0.61, 6 has 0.55 and 0 has 0.18.
  expect_shares({.temperature = 1.0, .min_p = 0.5}, of_three);
  expect_shares({.temperature = 1.0, .top_k = 5, .min_p = 0.5}, of_three);
  expect_shares({.temperature = 1.0, .top_p = 0.99, .min_p = 1.0}, {0, 0, 1, 0, 0, 0, 0});
  // At least one, however small top_p is.
  expect_shares({.temperature = 1.0, .top_p = 1e-9}, {0, 0, 1, 0, 0, 0, 0});
  expect_shares({.temperature = 1.0, .top_p = 0.0}, {0, 0, 1, 0, 0, 0, 0});
  // Of the two likeliest the first alone has p2 / (p2 + p3) > 0.6 of what top_k leaves.
  ASSERT_GT(p[2] / (p[2] + p[3]), 0.6);
  expect_shares({.temperature = 1.0, .top_k = 2, .top_p = 0.6}, {0, 0, 1, 0, 0, 0, 0});
}

// Five standard deviations of a binomial count: a false alarm once in two million.
TEST(Sampler, DrawsOfAStreamHaveTheDistribution) {
  constexpr int kDraws = 20000;
  Random stream = sequence_stream(3, 0);
  std::vector<double> uniforms;
  for (int i = 0; i < kDraws; ++i) uniforms.push_back(stream.uniform());
  const at::Tensor counts =
      at::bincount(sample_rows(row_of(kLogits).expand({kDraws, -1}), {.temperature = 1.0},
                               at::tensor(uniforms, at::kDouble)),
                   {}, static_cast<std::int64_t>(kLogits.size()));
  const auto p = softmax(kLogits);
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(counts[static_cast<std::int64_t>(i)].item<double>(), kDraws * p[i],
                5 * std::sqrt(kDraws * p[i] * (1 - p[i])));
  }
}

// The definition, token by token.
std::int64_t defined(const std::vector<float>& logits, const std::vector<std::int64_t>& order,
                     const SamplingOptions& options, double uniform) {
  const std::size_t all = order.size();
  const bool cut =
      (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(all)) || options.top_p < 1.0;
  std::vector<std::int64_t> kept = order;  // the likeliest first
  if (!cut) std::iota(kept.begin(), kept.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(all)) {
    kept.resize(static_cast<std::size_t>(options.top_k));
  }
  const double largest = logits[static_cast<std::size_t>(order[0])];
  const auto weight = [&](std::int64_t token) {
    return std::exp((logits[static_cast<std::size_t>(token)] - largest) / options.temperature);
  };
  double total = 0.0, sum = 0.0;
  for (const std::int64_t token : kept) total += weight(token);
  std::size_t count = 0;
  if (options.top_p < 1.0) {
    while (sum < options.top_p * total) sum += weight(kept[count++]);
    kept.resize(count);
    total = sum;
  }
  if (options.min_p > 0.0) {
    std::erase_if(kept, [&](std::int64_t token) { return weight(token) < options.min_p; });
    total = 0.0;
    for (const std::int64_t token : kept) total += weight(token);
  }
  sum = 0.0;
  for (const std::int64_t token : kept) {
    sum += weight(token);
    if (sum > uniform * total) return token;
  }
  return -2;
}

// Vocabularies around the number of candidates that are looked at first and around the size that is
// sorted by radix; flat and steep, with few equals and, in bf16, with many.
TEST(Sampler, IsWhatTheDefinitionSays) {
  for (const std::int64_t size : {1, 2, 255, 256, 257, 1000, 40000}) {
    for (const double spread : {0.0, 0.01, 1.0, 10.0}) {
      for (const bool bf16 : {false, true}) {
        Random random(11);
        at::Tensor row = at::empty({1, size});
        for (std::int64_t i = 0; i < size; ++i) {
          row.mutable_data_ptr<float>()[i] = static_cast<float>(spread * random.normal());
        }
        if (bf16) row = row.to(at::kBFloat16).to(at::kFloat);
        const std::vector<float> logits(row.const_data_ptr<float>(),
                                        row.const_data_ptr<float>() + size);
        std::vector<std::int64_t> order(logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
          return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
        });
        for (const std::int64_t top_k : {0, 1, 50, 128, 129, 900}) {
          for (const double top_p : {1.0, 0.95, 0.5, 0.05}) {
            for (const double min_p : {0.0, 0.02, 0.4}) {
              const SamplingOptions options{
                  .temperature = 0.7, .top_k = top_k, .top_p = top_p, .min_p = min_p};
              for (const double uniform : {0.0, random.uniform(), random.uniform()}) {
                EXPECT_EQ(sample(logits, options, uniform),
                          defined(logits, order, options, uniform))
                    << size << " tokens, spread " << spread << (bf16 ? ", bf16" : "") << ", top_k "
                    << top_k << ", top_p " << top_p << ", min_p " << min_p << ", draw " << uniform;
              }
            }
          }
        }
      }
    }
  }
}

// However the sums round, what is drawn is one of the kept tokens, and has a probability.
TEST(Sampler, TheLastDrawIsOfATokenThatIsKept) {
  std::vector<float> logits(300, 0.0F);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i < 200 ? 0.001 * static_cast<double>(i) : -2000.0);
  }
  const auto last = [&](const SamplingOptions& options) {
    return sample(logits, options, kLargestUniform);
  };
  EXPECT_EQ(last({.temperature = 1.0}), 199);
  EXPECT_EQ(last({.temperature = 1.0, .top_k = 50}), 150);
  EXPECT_EQ(last({.temperature = 1.0, .top_k = 250}), 0);
  EXPECT_EQ(last({.temperature = 1.0, .top_p = std::nextafter(1.0, 0.0)}), 0);
  EXPECT_EQ(sample(logits, {.temperature = 1.0}, 0.0), 0);
}

TEST(Sampler, VerySmallTemperatureIsTheLargestLogit) {
  for (const double temperature : {1e-3, 1e-6, 1e-300, 5e-324}) {
    for (const double top_p : {1.0, 0.5}) {
      for (const double uniform : {0.0, 0.5, kLargestUniform}) {
        EXPECT_EQ(sample(kLogits, {.temperature = temperature, .top_p = top_p}, uniform), 2);
      }
    }
  }
}

TEST(Sampler, OfEqualsThoseOfSmallerIdAreKept) {
  for (const std::size_t size : {4U, 300U, 600U}) {
    std::vector<float> logits(size, -1.0F);
    logits[1] = -0.0F;  // equals 0
    logits[2] = 0.0F;
    logits[3] = -0.0F;
    for (const double uniform : {0.0, 0.4, 0.6, kLargestUniform}) {
      EXPECT_EQ(sample(logits, {.temperature = 1.0, .top_k = 2}, uniform), uniform < 0.5 ? 1 : 2);
      EXPECT_EQ(sample(logits, {.temperature = 0.01, .top_p = 0.5}, uniform),
                uniform < 0.5 ? 1 : 2);
    }
  }
}

TEST(Sampler, ARowsTokenDependsOnThatRowAlone) {
  at::manual_seed(4);
  const at::Tensor logits =
      at::randn({5, 3000}) * at::tensor({0.1, 1.0, 3.0, 6.0, 12.0}).view({5, 1});
  const at::Tensor uniforms = at::rand({5}, at::kDouble);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 0.8},
        SamplingOptions{.temperature = 0.8, .top_k = 40},
        SamplingOptions{.temperature = 0.8, .top_p = 0.9},
        SamplingOptions{.temperature = 0.8, .min_p = 0.1},
        SamplingOptions{.temperature = 0.8, .top_k = 40, .min_p = 0.1}}) {
    const at::Tensor together = sample_rows(logits, options, uniforms);
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_TRUE(
          at::equal(together.narrow(0, row, 1),
                    sample_rows(logits.narrow(0, row, 1), options, uniforms.narrow(0, row, 1))));
    }
  }
}

TEST(Sampler, TokensThatWereThereArePenalised) {
  const std::vector<std::vector<std::int64_t>> sequences = {{2, 1, 2}, {4}};
  SeenTokens seen(sequences, 5, 2.0, at::kCPU);
  const at::Tensor logits = at::tensor({1.0F, -3.0F, 4.0F, 0.0F, 5.0F}).expand({2, 5});
  const auto expect = [&](const at::Tensor& got, const std::vector<std::vector<float>>& want) {
    ASSERT_EQ(got.size(0), static_cast<std::int64_t>(want.size()));
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[static_cast<std::int64_t>(i)], at::tensor(want[i]))) << got;
    }
  };
  expect(seen.penalise(logits), {{1, -6, 2, 0, 5}, {1, -3, 4, 0, 2.5}});
  expect(seen.penalise(logits.narrow(0, 0, 1), at::tensor({1}, at::kLong)), {{1, -3, 4, 0, 2.5}});
  seen.add(at::tensor({0, -1}, at::kLong));  // -1: none was drawn
  seen.add(at::tensor({2}, at::kLong), at::tensor({1}, at::kLong));
  expect(seen.penalise(logits), {{0.5, -6, 2, 0, 5}, {1, -3, 2, 0, 2.5}});
  SeenTokens none(sequences, 5, 1.0, at::kCPU);
  none.add(at::tensor({0, 1}, at::kLong));
  EXPECT_TRUE(none.penalise(logits).is_same(logits));
}

TEST(Sampler, BiasesHoldForTheirSteps) {
  const double never = -std::numeric_limits<double>::infinity();
  LogitBias bias({{2, never, 1}, {0, 1.5}, {0, 0.5, 2}, {9, never}}, 3, at::kCPU);
  const at::Tensor logits = at::zeros({2, 3});
  const auto expect = [&](std::int64_t step, const std::vector<float>& want) {
    bias.begin(step);
    EXPECT_TRUE(at::equal(bias.add(logits), at::tensor(want).expand({2, 3}))) << step;
  };
  expect(0, {2, 0, static_cast<float>(never)});
  expect(1, {2, 0, 0});
  expect(2, {1.5, 0, 0});
  expect(3, {1.5, 0, 0});
  EXPECT_TRUE(LogitBias().add(logits).is_same(logits));
  LogitBias all({{0, never}, {1, never}, {2, never, 4}}, 3, at::kCPU);
  EXPECT_THROW(all.begin(0), Error);
  EXPECT_NO_THROW(all.begin(4));
}

TEST(Sampler, SameSeedSameDrawsAndSequencesDiffer) {
  const auto draws = [](std::uint64_t seed, std::int64_t sequence) {
    Random stream = sequence_stream(seed, sequence);
    std::vector<double> out;
    for (int i = 0; i < 64; ++i) out.push_back(stream.uniform());
    return out;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
  EXPECT_NE(draws(1, 1), draws(1, 2));
}

// The same on every platform: draws of an equal distribution are thresholds of the generator alone.
TEST(Sampler, KnownDraws) {
  Random stream = sequence_stream(1234567, 0);
  const std::vector<float> equal(10, 0.0F);
  std::vector<std::int64_t> out;
  for (int i = 0; i < 3; ++i) out.push_back(sample(equal, {.temperature = 1.0}, stream.uniform()));
  // The reference generator's first numbers over 2^64: 0.350, 0.174, 0.532.
  EXPECT_EQ(out, (std::vector<std::int64_t>{3, 1, 5}));
}

std::vector<SamplingOptions> all_ways() {
  return {{},
          {.temperature = 1.0},
          {.temperature = 1.0, .top_k = 2},
          {.temperature = 1.0, .top_p = 0.9},
          {.temperature = 1.0, .top_k = 2, .top_p = 0.9}};
}

TEST(Sampler, ExtremeLogits) {
  for (const SamplingOptions& options : all_ways()) {
    for (const double uniform : {0.0, 0.5, kLargestUniform}) {
      EXPECT_EQ(sample({-kInfinity, 1e30F, -1e30F, -kInfinity}, options, uniform), 1);
    }
  }
}

TEST(Sampler, BrokenLogitsAreFoundAnywhere) {
  for (const SamplingOptions& options : all_ways()) {
    for (const std::size_t size : {1U, 17U, 300U}) {
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        for (const float broken : {kNan, kInfinity}) {
          std::vector<float> logits(size, -3.0F);
          logits[at] = broken;
          EXPECT_EQ(sample(logits, options), -1);
        }
      }
      EXPECT_EQ(sample(std::vector<float>(size, -kInfinity), options), -1);
    }
    // Beside a sound row.
    const at::Tensor ids = sample_rows(at::tensor({kNan, 0.0F, -kInfinity, 5.0F}).view({2, 2}),
                                       options, at::full({2}, 0.5, at::kDouble));
    EXPECT_EQ(ids[0].item<std::int64_t>(), -1);
    EXPECT_EQ(ids[1].item<std::int64_t>(), 1);
  }
}

TEST(Sampler, MistakesAreErrors) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto check = [](const SamplingOptions& options) {
    return message_of([&] { options.validate(); });
  };
  EXPECT_THAT(check({.temperature = -1.0}), testing::HasSubstr("temperature"));
  EXPECT_THAT(check({.temperature = nan}), testing::HasSubstr("temperature"));
  EXPECT_THAT(check({.top_k = -1}), testing::HasSubstr("top_k"));
  EXPECT_THAT(check({.top_p = -0.1}), testing::HasSubstr("top_p"));
  EXPECT_THAT(check({.top_p = 1.5}), testing::HasSubstr("top_p"));
  EXPECT_THAT(message_of(throw_broken_logits), testing::HasSubstr("NaN"));
}

}  // namespace
}  // namespace twell::lm
