// Popularity and unions of windows, against definitions that are computed neuron by neuron.
#include "measure/trace_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace twell::lm {
namespace {

using Pattern = std::vector<std::vector<bool>>;  // [tokens][H]: what fires

io::ActivityRows rows_of(const Pattern& pattern) {
  io::ActivityRows rows;
  for (const auto& token : pattern) {
    for (std::size_t n = 0; n < token.size(); ++n) {
      if (token[n]) rows.neurons.push_back(static_cast<std::uint32_t>(n));
    }
    rows.starts.push_back(rows.neurons.size());
  }
  return rows;
}

// Neuron n fires for a share of 1 / (n + 1) of the tokens; some rows are empty or full.
Pattern skewed(std::size_t tokens, std::size_t neurons, unsigned seed) {
  std::mt19937 random(seed);
  Pattern pattern(tokens, std::vector<bool>(neurons));
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t n = 0; n < neurons; ++n) {
      const double chance = t % 11 == 3   ? 0.0
                            : t % 13 == 5 ? 1.0
                                          : 1.0 / static_cast<double>(n + 1);
      pattern[t][n] = n % 7 != 6 && std::generate_canonical<double, 32>(random) < chance;
    }
  }
  return pattern;
}

std::int64_t count_of(const Pattern& pattern, std::size_t neuron) {
  return std::count_if(pattern.begin(), pattern.end(), [&](const auto& t) { return t[neuron]; });
}

void expect_same(double got, double expected) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << got;
  } else {
    EXPECT_NEAR(got, expected, 1e-12 * std::max(1.0, std::abs(expected)));
  }
}

// Every window and every neuron by itself.
WindowUnion slow_union(const Pattern& pattern, double hot_share, const TokenOrder& order,
                       std::size_t window) {
  const std::size_t h = pattern.empty() ? 0 : pattern[0].size();
  const std::size_t windows = order.size() / window;
  double fired[2] = {}, united[2] = {};  // of cold neurons, of all
  for (std::size_t w = 0; w < windows; ++w) {
    for (std::size_t n = 0; n < h; ++n) {
      const auto count = static_cast<double>(count_of(pattern, n));
      const bool hot = count > 0 && count >= hot_share * static_cast<double>(pattern.size());
      double here = 0;
      for (std::size_t i = w * window; i < (w + 1) * window; ++i) here += pattern[order[i]][n];
      for (const int all : {0, 1}) {
        if (all == 0 && hot) continue;
        fired[all] += here;
        united[all] += here > 0 ? 1 : 0;
      }
    }
  }
  const auto number = static_cast<double>(windows);
  return {static_cast<std::int64_t>(windows), windows == 0 ? 0 : united[1] / number,
          windows == 0 ? 0 : united[0] / number, fired[1] / united[1], fired[0] / united[0]};
}

void expect_like_slow(const Pattern& pattern, std::size_t neurons, double hot_share) {
  const io::ActivityRows rows = rows_of(pattern);
  const auto tokens = pattern.size();
  const NeuronFirings firings(rows, static_cast<std::uint32_t>(neurons), hot_share);
  std::vector<std::int64_t> counts;
  for (std::size_t n = 0; n < neurons; ++n) counts.push_back(count_of(pattern, n));
  double never = 0, hot = 0, all = 0, hot_fired = 0;
  for (const std::int64_t count : counts) {
    const bool is_hot =
        count > 0 && static_cast<double>(count) >= hot_share * static_cast<double>(tokens);
    never += count == 0;
    all += static_cast<double>(count);
    hot += is_hot;
    hot_fired += is_hot ? static_cast<double>(count) : 0;
  }
  EXPECT_EQ(firings.firings(), static_cast<std::int64_t>(all));
  expect_same(firings.never(), never / static_cast<double>(neurons));
  expect_same(firings.hot(), hot / static_cast<double>(neurons));
  expect_same(firings.hot_firings(), all > 0 ? hot_fired / all : 0);
  expect_same(firings.cold_nnz(), tokens > 0 ? (all - hot_fired) / static_cast<double>(tokens) : 0);
  std::sort(counts.rbegin(), counts.rend());
  std::erase(counts, 0);
  EXPECT_EQ(firings.neurons(), neurons);
  EXPECT_THAT(firings.sorted(), testing::ElementsAreArray(counts));

  std::vector<std::uint32_t> ids;
  for (std::size_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::uint32_t>(t * 7 % 5));
  for (const TokenOrder& order : {text_order(tokens), order_by_id(ids), random_order(tokens, 4)}) {
    for (const std::size_t window : {1, 2, 3, 16, 64}) {
      const WindowUnion got = window_union(rows, firings, order, window);
      const WindowUnion expected = slow_union(pattern, hot_share, order, window);
      EXPECT_EQ(got.windows, expected.windows);
      expect_same(got.neurons, expected.neurons);
      expect_same(got.cold_neurons, expected.cold_neurons);
      expect_same(got.sharing, expected.sharing);
      expect_same(got.cold_sharing, expected.cold_sharing);
    }
  }
}

TEST(TraceStatistics, AsCountedNeuronByNeuron) {
  const auto none = [](std::size_t t, std::size_t h) { return Pattern(t, std::vector<bool>(h)); };
  const auto full = [](std::size_t t, std::size_t h) {
    return Pattern(t, std::vector<bool>(h, true));
  };
  for (const double hot_share : {0.0, kHotShare, 0.2, 1.0, 2.0}) {
    for (const std::size_t h : {1, 2, 65, 130}) {
      for (const std::size_t tokens : {0, 1, 15, 16, 100, 129}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, H = " << h << ", " << hot_share);
        expect_like_slow(none(tokens, h), h, hot_share);
        expect_like_slow(full(tokens, h), h, hot_share);
        expect_like_slow(skewed(tokens, h, 5), h, hot_share);
      }
    }
  }
}

TEST(TraceStatistics, OneNeuronThatAllTokensFire) {
  Pattern pattern(32, std::vector<bool>(200));
  for (std::size_t t = 0; t < 32; ++t) pattern[t][17] = true;
  const io::ActivityRows rows = rows_of(pattern);
  const NeuronFirings firings(rows, 200);
  EXPECT_DOUBLE_EQ(firings.never(), 199.0 / 200);
  EXPECT_DOUBLE_EQ(firings.hot(), 1.0 / 200);
  EXPECT_DOUBLE_EQ(firings.hot_firings(), 1);
  EXPECT_DOUBLE_EQ(firings.top(0.01), 1);      // two neurons
  EXPECT_DOUBLE_EQ(firings.top(0.0025), 0.5);  // half a neuron
  const WindowUnion all = window_union(rows, firings, text_order(32), 16);
  EXPECT_EQ(all.windows, 2);
  EXPECT_DOUBLE_EQ(all.neurons, 1);
  EXPECT_DOUBLE_EQ(all.sharing, 16);
  EXPECT_TRUE(std::isnan(all.cold_sharing));
}

TEST(TraceStatistics, TheCurveRisesFromNoneToAll) {
  const NeuronFirings firings(rows_of(skewed(300, 90, 6)), 90);
  EXPECT_DOUBLE_EQ(firings.top(0), 0);
  EXPECT_DOUBLE_EQ(firings.top(1), 1);
  EXPECT_DOUBLE_EQ(firings.top(7), 1);
  double before = 0;
  for (double share = 0.001; share < 1; share += 0.001) {
    const double here = firings.top(share);
    EXPECT_GE(here, before);
    EXPECT_GE(here, share - 1e-12) << "the most popular neurons fire no less than others";
    before = here;
  }
}

TEST(TraceStatistics, TokensThatAreEqualFireTogether) {
  // Token id i fires neurons 2 i and 2 i + 1. Sorted, every window of four is of one id.
  Pattern pattern(64, std::vector<bool>(32));
  std::vector<std::uint32_t> ids;
  for (std::size_t t = 0; t < 64; ++t) {
    ids.push_back(static_cast<std::uint32_t>(t * 5 % 16));
    pattern[t][2 * ids.back()] = pattern[t][2 * ids.back() + 1] = true;
  }
  const io::ActivityRows rows = rows_of(pattern);
  const NeuronFirings firings(rows, 32, 0.5);
  EXPECT_DOUBLE_EQ(window_union(rows, firings, order_by_id(ids), 4).cold_sharing, 4);
  EXPECT_DOUBLE_EQ(window_union(rows, firings, text_order(64), 4).cold_sharing, 1);
}

TEST(TraceStatistics, OrdersHaveEveryTokenOnce) {
  const std::vector<std::uint32_t> ids = {3, 1, 3, 0, 1, 0xffffffffU};
  EXPECT_THAT(order_by_id(ids), testing::ElementsAre(3, 1, 4, 0, 2, 5));
  TokenOrder random = random_order(1000, 7);
  EXPECT_EQ(random, random_order(1000, 7));
  EXPECT_NE(random, random_order(1000, 8));
  EXPECT_NE(random, text_order(1000));
  std::sort(random.begin(), random.end());
  EXPECT_EQ(random, text_order(1000));
  EXPECT_TRUE(random_order(0, 1).empty());
}

}  // namespace
}  // namespace twell::lm
