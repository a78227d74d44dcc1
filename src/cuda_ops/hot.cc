// Which neurons to multiply densely.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "cuda_ops/planning.h"
#include "kernels/cuda/shapes.h"

namespace twell::cuda {

std::int64_t hot_of(const Problem& problem) {
  // Hot neurons want GEMMs of many rows; where all are hot, any number is a dense layer.
  constexpr std::int64_t kHotRows = 64;
  if (!library_present()) return 0;
  if (problem.hot == problem.hidden) return problem.hidden;
  const std::int64_t hot = problem.hot / kVector * kVector;
  const bool listed = problem.hidden - hot <= kMostListed;
  return problem.tokens >= kHotRows && listed ? hot : 0;
}

double hot_rate(const Device& device, const Problem& problem) {
  check_problem("cuda::hot_rate", problem);
  require(problem.tokens > 0, "cuda::hot_rate", "tokens", "expected 1 or more, got 0");
  if (!library_present()) return 1;
  // What one neuron more costs on either side, at sizes where nothing is rounded up.
  Problem all = problem;
  all.hot = problem.hidden;
  Problem none = problem;
  none.hot = 0;
  const double hidden = static_cast<double>(problem.hidden);
  const double dense = estimate_ffn(device, all, 1, 1).hot / hidden;
  const double gathered = estimate_ffn(device, none, 1, 1).gather / hidden;
  return std::min(1.0, dense / gathered);
}

namespace {

void check_rates(const char* operation, const Problem& problem, const std::vector<double>& rates) {
  check_problem(operation, problem);
  require(static_cast<std::int64_t>(rates.size()) == problem.hidden, operation, "rates",
          "expected one for each of ", problem.hidden, " neurons, got ", rates.size());
  require(std::is_sorted(rates.rbegin(), rates.rend()), operation, "rates",
          "expected the highest first");
  require(rates.empty() || (rates.front() <= 1 && rates.back() >= 0), operation, "rates",
          "expected shares of 0 to 1");
}

// Share of all neurons that tokens fire among those from `first` on.
double density_from(const std::vector<double>& rates, std::int64_t first) {
  return std::accumulate(rates.begin() + first, rates.end(), 0.0) /
         static_cast<double>(rates.size());
}

}  // namespace

FfnCost estimate_ffn(const Device& device, const Problem& problem,
                     const std::vector<double>& rates) {
  check_rates("cuda::estimate_ffn", problem, rates);
  const double density = std::min(density_from(rates, 0), 1.0);
  return estimate_ffn(device, problem, density,
                      std::min(density_from(rates, hot_of(problem)), density));
}

std::int64_t choose_hot(const Device& device, const Problem& problem,
                        const std::vector<double>& rates) {
  check_rates("cuda::choose_hot", problem, rates);
  if (problem.tokens == 0) return 0;
  const double limit = hot_rate(device, problem);
  const auto above =
      std::partition_point(rates.begin(), rates.end(), [&](double rate) { return rate > limit; });
  // Columns of a GEMM come in blocks of 64.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t some = std::min(round_up(above - rates.begin(), kColumns), problem.hidden);
  std::int64_t best = 0;
  double least = 0;
  for (const std::int64_t hot : {std::int64_t{0}, some, problem.hidden}) {
    Problem tried = problem;
    tried.hot = hot;
    const double seconds = estimate_ffn(device, tried, rates).sparse();
    if (hot == 0 || seconds < least) {
      best = hot;
      least = seconds;
    }
  }
  return best;
}

}  // namespace twell::cuda
