#include "synth/popularity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "twell/status.h"

namespace twell::lm {
namespace {

// x in [low, high] with f(x) = target, f ascending.
template <class F>
double bisect(double low, double high, double target, F f) {
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (f(middle) < target ? low : high) = middle;
  }
  return (low + high) / 2;
}

enum : std::uint64_t { kOrder = 1, kRows };

}  // namespace

std::uint64_t random_stream(std::uint64_t seed, std::uint64_t purpose) {
  return seed * 0x9e3779b97f4a7c15ULL + purpose;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double normal_quantile(double p) {
  if (p <= 0) return -kCertain;
  if (p >= 1) return kCertain;
  return bisect(-kCertain, kCertain, p, normal_cdf);
}

std::vector<double> neuron_popularity(std::int64_t neurons, const ActivityShape& shape,
                                      std::uint64_t seed) {
  const double h = static_cast<double>(neurons);
  if (!(shape.mean_nnz >= 0 && shape.mean_nnz <= h)) {
    throw Error(ErrorKind::invalid_argument, "activity",
                "mean non-zeros must lie between 0 and the hidden size");
  }
  // No neuron fires on more than 98 % of the tokens, unless there is no other way.
  constexpr double kBusiest = 0.98;
  const double needed = std::ceil(shape.mean_nnz / kBusiest);
  const auto live = static_cast<std::int64_t>(
      std::clamp(std::max((1 - shape.dead_fraction) * h, needed), 0.0, h));
  std::vector<double> popularity(static_cast<std::size_t>(neurons), 0.0);
  if (live == 0) return popularity;
  const double busiest = std::max(kBusiest, shape.mean_nnz / static_cast<double>(live));
  // The head of the law is flattened: rank + H / 500.
  const auto law = [&](std::int64_t rank) {
    return std::pow(static_cast<double>(rank) + 1 + h / 500, -shape.zipf_exponent);
  };
  const auto total = [&](double log_scale) {
    double sum = 0;
    for (std::int64_t n = 0; n < live; ++n) sum += std::min(busiest, std::exp(log_scale) * law(n));
    return sum;
  };
  const double scale = std::exp(bisect(-60.0, 60.0, shape.mean_nnz, total));
  for (std::int64_t n = 0; n < live; ++n) {
    popularity[static_cast<std::size_t>(n)] = std::min(busiest, scale * law(n));
  }
  std::mt19937_64 order(random_stream(seed, kOrder));
  std::shuffle(popularity.begin(), popularity.end(), order);
  return popularity;
}

std::vector<double> row_shifts(std::int64_t tokens, const std::vector<double>& popularity,
                               const ActivityShape& shape, std::uint64_t seed) {
  std::vector<double> shifts(static_cast<std::size_t>(tokens), 0.0);
  const double live = static_cast<double>(
      std::count_if(popularity.begin(), popularity.end(), [](double p) { return p > 0; }));
  if (tokens == 0 || live == 0) return shifts;
  // Above half of the live neurons there is less and less room above the mean.
  const double sigma = shape.row_sigma * std::min(1.0, 2 * (1 - shape.mean_nnz / live));
  // Quantiles instead of samples: few tokens have the right mean as well.
  std::vector<double> counts(shifts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double q = (static_cast<double>(i) + 0.5) / static_cast<double>(tokens);
    counts[i] = std::exp(std::max(sigma, 0.0) * normal_quantile(q));
  }
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (double& c : counts) c *= shape.mean_nnz * static_cast<double>(tokens) / sum;

  std::vector<double> quantiles;
  for (const double p : popularity) {
    if (p > 0) quantiles.push_back(normal_quantile(p));
  }
  // Counts as a function of the shift, tabulated: H erfc per token would take seconds.
  constexpr int kSteps = 400;
  constexpr double kWidest = 5.0;
  std::vector<double> table(kSteps + 1);
  for (int s = 0; s <= kSteps; ++s) {
    const double shift = kWidest * (2.0 * s / kSteps - 1);
    for (const double q : quantiles) {
      table[static_cast<std::size_t>(s)] += normal_cdf(q + shift);
    }
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto above = std::upper_bound(table.begin(), table.end(), counts[i]);
    const auto s = std::clamp<std::ptrdiff_t>(above - table.begin(), 1, kSteps);
    const double low = table[static_cast<std::size_t>(s - 1)];
    const double high = table[static_cast<std::size_t>(s)];
    const double part = high > low ? std::clamp((counts[i] - low) / (high - low), 0.0, 1.0) : 0.0;
    shifts[i] = kWidest * (2.0 * (static_cast<double>(s - 1) + part) / kSteps - 1);
  }
  std::mt19937_64 order(random_stream(seed, kRows));
  std::shuffle(shifts.begin(), shifts.end(), order);
  return shifts;
}

}  // namespace twell::lm
