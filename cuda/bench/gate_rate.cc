#include "cuda/bench/gate_rate.h"

#include "cuda/ops/figures.h"
#include "cuda/ops/planning.h"

namespace twell::bench {

double assumed_seconds(const cuda::Device& device, const cuda::Problem& problem,
                       const cuda::GemmPlan& plan) {
  return cuda::gate_seconds(device, problem, plan);
}

std::optional<double> rate_reached(const cuda::Device& device, const cuda::Problem& problem,
                                   const cuda::GemmPlan& plan, double seconds) {
  constexpr double kBesides = cuda::kLaunch + cuda::kTileLatency;
  if (plan.rate == 0 || seconds <= kBesides) return std::nullopt;
  const auto expected = [&](double rate) {
    return cuda::tile_gate_seconds(device, problem, {plan.block_rows, plan.block_cols, rate});
  };
  // So slow that nothing but arithmetic counts.
  constexpr double kSlow = 1e-9;
  const double at_full_rate = (expected(kSlow) - kBesides) * kSlow;
  const bool by_memory = expected(plan.rate) > (at_full_rate / plan.rate + kBesides) * (1 + 1e-6);
  if (by_memory) return std::nullopt;
  return at_full_rate / (seconds - kBesides);
}

bool takes(const cuda::Device& device, const cuda::Problem& problem, cuda::GemmShape shape) {
  return cuda::plan_gemm_relu_twell(device, problem).shape == shape;
}

}  // namespace twell::bench
