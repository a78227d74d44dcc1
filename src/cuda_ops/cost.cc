// What the two paths of a layer are expected to take, from the rates of the GPU's data sheet.
//
// Both are bound by the largest of what they compute and what they read. The shares of a rate that
// real kernels reach are estimates until they are measured; only the ratio of the two paths is
// used, and callers correct that by measurements (models/measured_cost.h).
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda_ops/planning.h"

namespace twell::cuda {
namespace {

// Multiply-adds of 16-bit floats with f32 sums that one SM's tensor cores do in a clock.
double tensor_fma(const Device& device) {
  if (device.major >= 12) return 256;
  if (device.major >= 10) return 4096;
  if (device.major == 9) return 2048;
  return device.minor == 0 ? 1024 : 256;
}

// Of a rate: large library GEMMs; mma.sync beside what wgmma reaches on Hopper and later; memory.
constexpr double kLibraryShare = 0.75;
constexpr double kMmaShare = 0.6;
constexpr double kMmaShareFromHopper = 0.35;
constexpr double kMemoryShare = 0.85;
constexpr double kLaunch = 3e-6;  // seconds between kernels on a stream, at most
// CUDA cores: 128 FMA a clock and SM, of which a gather's unpacking of 16-bit values leaves a
// third.
constexpr double kGatherFma = 128.0 / 3;
constexpr double kL2Bytes = 32;  // a clock and SM, half of what an SM's port can take

}  // namespace

DeviceRates rates_of(const Device& device) {
  // A data sheet of 2020's smallest, where the driver does not tell.
  const double clock = device.clock_khz > 0 ? device.clock_khz * 1e3 : 1.4e9;
  DeviceRates rates;
  rates.tensor_flops = 2 * tensor_fma(device) * clock * device.sm_count;
  rates.gather_flops = 2 * kGatherFma * clock * device.sm_count;
  rates.l2_bytes = kL2Bytes * clock * device.sm_count;
  // Two transfers a clock.
  rates.memory_bytes = device.memory_clock_khz > 0
                           ? 2e3 * device.memory_clock_khz * device.memory_bus_bits / 8
                           : 0.75e12;
  return rates;
}

FfnCost estimate_ffn(const Device& device, const Problem& problem, double density) {
  check_problem("cuda::estimate_ffn", problem);
  require(density >= 0 && density <= 1, "cuda::estimate_ffn", "density", "expected 0 to 1, got ",
          density);
  const DeviceRates rates = rates_of(device);
  const auto tokens = static_cast<double>(problem.tokens);
  const auto depth = static_cast<double>(problem.depth);
  const auto hidden = static_cast<double>(problem.hidden);
  const double projections = problem.gated ? 2 : 1;  // but for the gate, or up where there is none
  const double memory = kMemoryShare * rates.memory_bytes;
  const auto gemm = [&](double share, double bytes_of_activation) {
    return std::max(2 * tokens * depth * hidden / (share * rates.tensor_flops),
                    (2 * depth * hidden + bytes_of_activation) / memory);
  };
  FfnCost cost;
  // Gate, up and down, and the product of the activations, read and written once each.
  cost.dense = (projections + 1) * (gemm(kLibraryShare, 2 * tokens * (depth + hidden)) + kLaunch) +
               (2 + 2 * projections) * tokens * hidden / memory + projections * kLaunch;
  const double own = device.major >= 9 ? kMmaShareFromHopper : kMmaShare;
  const double gathered = tokens * density * hidden;  // rows of weights, of one matrix
  // Tokens fire neurons of their own: the most rows that can be distinct.
  const double distinct = hidden * (1 - std::pow(1 - density, tokens));
  const double gather = std::max({2 * projections * gathered * depth / rates.gather_flops,
                                  2 * projections * gathered * depth / rates.l2_bytes,
                                  2 * projections * distinct * depth / memory});
  cost.sparse = gemm(own, 2 * tokens * depth + 8 * gathered) + gather + 2 * kLaunch;
  return cost;
}

}  // namespace twell::cuda
