// What plans assume of a shape of the gate GEMM, beside the time that it took.
#pragma once

#include <optional>

#include "twell/cuda.h"

namespace twell::bench {

// Seconds that plans expect of the gate by so planned a GEMM.
double assumed_seconds(const cuda::Device& device, const cuda::Problem& problem,
                       const cuda::GemmPlan& plan);
// The `rate` (cuda/ops/plan_gemm.cc) with which they would have expected `seconds`; none for
// shapes that have no rate, and where the estimate is bound by memory, or the time by the launch.
std::optional<double> rate_reached(const cuda::Device& device, const cuda::Problem& problem,
                                   const cuda::GemmPlan& plan, double seconds);
// Whether a plan would take this shape.
bool takes(const cuda::Device& device, const cuda::Problem& problem, cuda::GemmShape shape);

}  // namespace twell::bench
