// Which neurons to multiply densely.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "cuda/kernels/shapes.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {

std::int64_t hot_of(const Problem& problem) {
  // Hot neurons want GEMMs of many rows; where all are hot, any number is a dense layer.
  constexpr std::int64_t kHotRows = 64;
  if (!library_present()) return 0;
  if (problem.hot == problem.neurons) return problem.neurons;
  const std::int64_t hot = problem.hot / kVector * kVector;
  const bool listed = problem.neurons - hot <= kMostListed;
  return problem.tokens >= kHotRows && listed ? hot : 0;
}

double density_from(const std::vector<double>& rates, std::int64_t first) {
  return std::accumulate(rates.begin() + first, rates.end(), 0.0) /
         static_cast<double>(rates.size());
}

namespace {

void check_rates(const char* operation, const Problem& problem, const std::vector<double>& rates) {
  check_problem(operation, problem);
  require(static_cast<std::int64_t>(rates.size()) == problem.neurons, operation, "rates",
          "expected one for each of ", problem.neurons, " neurons, got ", rates.size());
  require(std::is_sorted(rates.rbegin(), rates.rend()), operation, "rates",
          "expected the highest first");
  require(rates.empty() || (rates.front() <= 1 && rates.back() >= 0), operation, "rates",
          "expected shares of 0 to 1");
}

}  // namespace

FfnCost estimate_ffn(const Device& device, const Problem& problem,
                     const std::vector<double>& rates) {
  check_rates("cuda::estimate_ffn", problem, rates);
  const double density = std::min(density_from(rates, 0), 1.0);
  return estimate_ffn(device, problem, density,
                      std::min(density_from(rates, hot_of(problem)), density));
}

std::int64_t cheapest_hot(
    const char* operation, const Problem& problem, const std::vector<double>& rates,
    const std::function<double(const Problem&, double density, double cold)>& seconds_of) {
  check_rates(operation, problem, rates);
  if (problem.tokens == 0) return 0;
  // Columns of a GEMM come in blocks of 64. Sums of the rates from each neuron on: all are tried.
  constexpr std::int64_t kColumns = 64;
  std::vector<double> from(rates.size() + 1);
  std::partial_sum(rates.rbegin(), rates.rend(), from.rbegin() + 1);
  const auto density = [&](std::int64_t first) {
    return std::min(1.0,
                    from[static_cast<std::size_t>(first)] / static_cast<double>(problem.neurons));
  };
  std::int64_t best = 0;
  double least = 0;
  for (std::int64_t hot = 0;; hot = std::min(hot + kColumns, problem.neurons)) {
    Problem tried = problem;
    tried.hot = hot;
    const double seconds = seconds_of(tried, density(0), density(hot_of(tried)));
    if (hot == 0 || seconds < least) {
      best = hot;
      least = seconds;
    }
    if (hot == problem.neurons) break;
  }
  return best;
}

std::int64_t choose_hot(const Device& device, const Problem& problem,
                        const std::vector<double>& rates) {
  return cheapest_hot("cuda::choose_hot", problem, rates,
                      [&](const Problem& tried, double density, double cold) {
                        return estimate_ffn(device, tried, density, cold).sparse();
                      });
}

}  // namespace twell::cuda
