// The synthetic activity has the statistics that it promises.
#include "synth/synthetic.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "twell/status.h"

namespace twell::lm {
namespace {

TEST(Activity, QuantileInvertsTheNormalDistribution) {
  for (const double p : {1e-9, 0.001, 0.3, 0.5, 0.975, 1 - 1e-9}) {
    EXPECT_NEAR(normal_cdf(normal_quantile(p)), p, 1e-12 + p * 1e-9);
  }
  EXPECT_NEAR(normal_quantile(0.975), 1.959964, 1e-6);
  EXPECT_EQ(normal_quantile(0), -kCertain);
  EXPECT_EQ(normal_quantile(1), kCertain);
}

TEST(Activity, PopularityAddsUpAtEveryDensity) {
  for (const double nnz : {0.0, 1.0, 29.0, 563.0, 2000.0, 5000.0, 5632.0}) {
    ActivityShape shape;
    shape.mean_nnz = nnz;
    const auto p = neuron_popularity(5632, shape, 7);
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), nnz, 1e-6 * (1 + nnz)) << nnz;
    EXPECT_GE(*std::min_element(p.begin(), p.end()), 0.0);
    EXPECT_LE(*std::max_element(p.begin(), p.end()), 1.0 + 1e-12);
  }
  EXPECT_THROW(neuron_popularity(10, {.mean_nnz = 11}, 1), Error);
}

TEST(Activity, PopularityIsSkewedAndPartlyDead) {
  const auto p = neuron_popularity(5632, {}, 7);
  const auto dead = std::count(p.begin(), p.end(), 0.0);
  EXPECT_NEAR(static_cast<double>(dead) / 5632, 0.3, 0.001);
  auto sorted = p;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double top = std::accumulate(sorted.begin(), sorted.begin() + 56, 0.0);  // 1 % of H
  // Σ 1/(r + 12.3) over the first 56 ranks, of Σ over 3942: ln(68.3/12.3) / ln(3954/12.3) = 0.297.
  EXPECT_NEAR(top / 29, 0.297, 0.01);
}

TEST(Activity, RowShiftsGiveTheMeanForFewAndManyTokens) {
  const ActivityShape shape;
  const auto p = neuron_popularity(5632, shape, 3);
  std::vector<double> quantiles;
  for (const double popularity : p) {
    if (popularity > 0) quantiles.push_back(normal_quantile(popularity));
  }
  for (const std::int64_t tokens : {1, 2, 64, 1000}) {
    double sum = 0;
    std::vector<double> counts;
    for (const double shift : row_shifts(tokens, p, shape, 3)) {
      double count = 0;
      for (const double quantile : quantiles) count += normal_cdf(quantile + shift);
      counts.push_back(count);
      sum += count;
    }
    // The table of counts has steps of 0.025 in the shift, within which a count is interpolated.
    EXPECT_NEAR(sum / static_cast<double>(tokens), 29, 0.05) << tokens;
    if (tokens == 1000) {  // a lognormal of sigma 0.5: median exp(-σ²/2) of the mean
      std::nth_element(counts.begin(), counts.begin() + 500, counts.end());
      EXPECT_NEAR(counts[500], 29 * std::exp(-0.125), 0.3);
    }
  }
}

double measured_nnz(const SyntheticShape& shape, std::int64_t tokens) {
  const SyntheticLayer layer = synthetic_layer(shape, 5);
  const at::Tensor x = synthetic_inputs(shape, tokens, 5);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat); };
  const SyntheticLayer f32 = layer.map(wide);
  const at::Tensor pre = at::linear(wide(x), f32.gate, f32.gate_bias);
  return (pre > shape.threshold).sum().item<double>() / static_cast<double>(tokens);
}

TEST(Activity, LayersFireAsAsked) {
  SyntheticShape shape;
  shape.width = 256;
  shape.neurons = 2048;
  for (const double nnz : {2.0, 29.0, 400.0, 1900.0}) {
    for (const auto& [threshold, biases] : {std::pair{0.0, false}, {0.5, false}, {0.5, true}}) {
      shape.activity.mean_nnz = nnz;
      shape.threshold = threshold;
      shape.biases = biases;
      // A token's count has a standard deviation of about √nnz besides the planned spread; five of
      // them over 512 tokens, and 2 % for what bf16 weights move at D = 256.
      const double tolerance = 5 * std::sqrt(nnz / 512) + 0.02 * nnz;
      EXPECT_NEAR(measured_nnz(shape, 512), nnz, tolerance)
          << nnz << " above " << threshold << " biases " << biases;
    }
  }
}

TEST(Activity, SameSeedSameBits) {
  SyntheticShape shape;
  shape.width = 64;
  shape.neurons = 128;
  shape.activity.mean_nnz = 5;
  EXPECT_TRUE(at::equal(synthetic_layer(shape, 1).gate, synthetic_layer(shape, 1).gate));
  EXPECT_FALSE(at::equal(synthetic_layer(shape, 1).gate, synthetic_layer(shape, 2).gate));
  EXPECT_TRUE(at::equal(synthetic_inputs(shape, 9, 1), synthetic_inputs(shape, 9, 1)));
}

}  // namespace
}  // namespace twell::lm
