// What training is expected to take, forward and backward: the formula of cost.cc with the kernels
// of the backward pass (docs/gpu-model.md).
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda/ops/figures.h"
#include "cuda/ops/planning.h"
#include "twell/cuda_train.h"

namespace twell::cuda {
namespace {

// Reads of bits, counts and starts that wait for one another in the three kernels.
constexpr double kTransposeLatency = 15e-6;
// Of a turn: a memset and six kernels, most of which find nothing after the first.
constexpr double kTurn = 15e-6;

// Nine GEMMs, or six; relu, the products and their gradients each read and write [M, H] in memory.
double eager_seconds(const Figures& f, bool gated) {
  const double gemms = (gated ? 9 : 6) * f.gemm(f.library, f.neurons, 2 * f.tokens * f.width);
  const double passes = gated ? 28 : 10;  // bytes an element
  const int kernels = gated ? 6 : 2;
  const double sum = gated ? 6 * f.tokens * f.width / f.memory + kLaunch : 0;  // dx of two products
  return gemms + passes * f.tokens * f.neurons / f.memory + kernels * kLaunch + sum;
}

// GEMMs of the hot neurons in the backward pass. Weight gradients have few tiles and a long depth:
// the library cuts that into parts.
double hot_seconds(const Figures& f, double hot) {
  if (hot == 0) return 0;
  const double gemms = 3 * f.projections;
  const double sums = hot == f.neurons ? 2 : 8;  // bytes of an element of dx
  return gemms * 2 * f.tokens * f.width * hot / f.library +
         6 * f.projections * f.tokens * hot / f.memory + sums * f.tokens * f.width / f.memory +
         8 * f.projections * hot * f.width / f.memory + (gemms + 3) * kLaunch;
}

}  // namespace

TrainCost estimate_train(const Device& device, const Problem& problem, double density,
                         double cold_density) {
  Problem planned = problem;
  planned.joined = false;
  const Figures f(device, planned);
  TrainCost cost;
  cost.forward = estimate_ffn(device, planned, density, cold_density).sparse() + 2 * kLaunch;
  cost.dense = eager_seconds(f, problem.gated);
  const auto hot = static_cast<double>(hot_of(planned));
  cost.hot = hot_seconds(f, hot);
  if (hot == f.neurons) return cost;
  const double turns =
      std::ceil(f.tokens * (f.neurons - hot) / static_cast<double>(turn_places(device)));
  cost.transpose = kTransposeLatency + f.tokens * (f.neurons - hot) / (4 * f.memory) +
                   std::max(turns - 1, 0.0) * kTurn;
  const double places = f.tokens * cold_density * f.neurons;
  // By rows: dot products with Wd, sums of Wg and Wu.
  const double by_row = 2 * f.width * (1 + f.projections);
  cost.rows = std::max(places * by_row / f.l2, places * by_row / f.rates.gather_flops) +
              1.5 * kGatherLatency;
  // By neurons: x and dy, of which a group of columns is read from memory once. Their unpacking
  // serves three products where a gather's serves two.
  const double of_x = 4 * f.width;
  const double sums = 2 * f.width * (1 + f.projections);
  cost.neurons =
      std::max(places * of_x / f.l2, places * sums / (1.5 * f.rates.gather_flops)) +
      (4 * f.tokens * f.width + (1 + f.projections) * 2 * f.neurons * f.width) / f.memory +
      kGatherLatency;
  return cost;
}

std::int64_t choose_hot_in_training(const Device& device, const Problem& problem,
                                    const std::vector<double>& rates) {
  return cheapest_hot("cuda::choose_hot_in_training", problem, rates,
                      [&](const Problem& tried, double density, double cold) {
                        return estimate_train(device, tried, density, cold).sparse();
                      });
}

std::optional<std::int64_t> choose_training(const Device& device, const Problem& problem,
                                            const std::vector<double>& rates, double besides) {
  if (!library_present()) return {};
  Problem chosen = problem;
  chosen.hot = choose_hot_in_training(device, problem, rates);
  if (problem.neurons - chosen.hot > kMostColdNeurons) return {};
  const TrainCost seconds =
      estimate_train(device, chosen, density_from(rates, 0), density_from(rates, chosen.hot));
  // What is only estimated has to be worth it, as in inference.
  constexpr double kWorth = 0.9;
  if (seconds.sparse() + besides >= kWorth * seconds.dense) return {};
  return chosen.hot;
}

}  // namespace twell::cuda
