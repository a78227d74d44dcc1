// What the two paths of a layer are expected to take, from the rates of the GPU's data sheet; the
// formula is explained in docs/gpu-model.md.
//
// Every kernel is bound by the largest of what it computes and what it reads. The shares of a rate
// that real kernels reach are estimates until they are measured; only the ratio of the two paths is
// used, and callers correct that by measurements (models/measured_cost.h).
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda_ops/planning.h"
#include "kernels/cuda/shapes.h"

namespace twell::cuda {
namespace {

// Of a rate: large library GEMMs; mma.sync beside what wgmma reaches on Hopper and later; memory;
// L2, read in rows of 4 KB or in order.
constexpr double kLibraryShare = 0.7;
constexpr double kMmaShare = 0.6;
constexpr double kMmaShareFromHopper = 0.42;
constexpr double kMemoryShare = 0.85;
constexpr double kL2Share = 0.75;
constexpr double kLaunch = 1.2e-6;  // seconds between kernels on a stream
// When a screen has been read: sums of warps, bounds, rows of W that wait for them.
constexpr double kScreenLatency = 1.5e-6;
// Of a thread to round one input of a token, and to multiply it: read from the machine code.
constexpr double kRoundInstructions = 24;
// A gather's reads that wait for one another, some 0.6 µs each: counts, slots, Wu, Wd, sums.
constexpr double kGatherLatency = 4e-6;

struct Figures {
  Figures(const Device& device, const Problem& problem)
      : rates(rates_of(device)),
        memory(kMemoryShare * rates.memory_bytes),
        l2(kL2Share * rates.l2_bytes),
        library(kLibraryShare * rates.tensor_flops),
        tokens(static_cast<double>(problem.tokens)),
        depth(static_cast<double>(problem.depth)),
        hidden(static_cast<double>(problem.hidden)),
        projections(problem.gated ? 2 : 1) {}

  // A GEMM of `cols` outputs at so many operations a second.
  double gemm(double flops, double cols, double bytes) const {
    return std::max(2 * tokens * depth * cols / flops, (2 * depth * cols + bytes) / memory) +
           kLaunch;
  }
  // Rows of `weights` matrices, as many as can be distinct, from L2 and once from memory.
  double rows(double share, double weights) const {
    const double gathered = tokens * share * hidden;
    const double distinct = hidden * (1 - std::pow(1 - share, tokens));
    const double row = 2 * weights * depth;  // bytes, and operations
    return std::max(
        {gathered * row / rates.gather_flops, gathered * row / l2, distinct * row / memory});
  }
  // Up and down of so many neurons as GEMMs, with the product between them.
  double products(double cols, double sum_bytes) const {
    return projections * gemm(library, cols, 2 * tokens * (depth + cols)) +
           (projections - 1) * (6 * tokens * cols / memory + kLaunch) + sum_bytes / memory;
  }

  DeviceRates rates;
  double memory, l2, library, tokens, depth, hidden, projections;
};

}  // namespace

double tile_gate_seconds(const Device& device, const Problem& problem, const TileShape& shape) {
  const Figures f(device, problem);
  const double own = device.major >= 9 ? kMmaShareFromHopper : kMmaShare;
  const auto blocks = static_cast<double>(ceil_div(problem.tokens, shape.rows) *
                                          ceil_div(problem.hidden, shape.cols));
  // The SM with the most blocks.
  const double each = 2.0 * shape.rows * shape.cols * f.depth * device.sm_count /
                      (own * shape.rate * f.rates.tensor_flops);
  return std::max(std::ceil(blocks / device.sm_count) * each,
                  2 * f.depth * (f.hidden + f.tokens) / f.memory) +
         kLaunch;
}

double library_gate_seconds(const Device& device, const Problem& problem) {
  const Figures f(device, problem);
  const GemmPlan plan = plan_library_gemm(device, problem, 16);  // whatever it packs
  const auto blocks = static_cast<double>(ceil_div(problem.tokens, plan.block_rows));
  const double value_bytes = plan.wide ? 4 : 2;
  return f.gemm(f.library, f.hidden, 2 * f.tokens * f.depth) - kLaunch + 2 * blocks * kLaunch +
         f.tokens * f.hidden * value_bytes / f.l2;
}

double stream_gate_seconds(const Device& device, const Problem& problem) {
  const Figures f(device, problem);
  return f.gemm(f.library, f.hidden, 2 * f.tokens * f.depth);
}

double screen_gate_seconds(const Device& device, const Problem& problem) {
  const Figures f(device, problem);
  const auto bytes = static_cast<double>(screen_bytes(problem.hidden, problem.depth));
  // Every block of neurons rounds x, in groups of eight tokens; the SM with the most blocks.
  const auto blocks = round_up(ceil_div(problem.hidden, ScreenTiles::kNeurons), device.sm_count);
  const auto rounded = static_cast<double>(round_up(problem.tokens, 8) * problem.depth * blocks);
  const double rounding = kRoundInstructions * rounded / f.rates.instructions;
  return std::max(bytes / f.memory, rounding) + f.rows(problem.candidates, 1) + kScreenLatency +
         kLaunch;
}

FfnCost estimate_ffn(const Device& device, const Problem& problem, double density,
                     double cold_density) {
  constexpr const char* kOperation = "cuda::estimate_ffn";
  check_problem(kOperation, problem);
  require(density >= 0 && density <= 1, kOperation, "density", "expected 0 to 1, got ", density);
  require(cold_density >= 0 && cold_density <= density, kOperation, "cold_density",
          "expected 0 to ", density, ", got ", cold_density);
  const Figures f(device, problem);
  FfnCost cost;
  // Gate, up and down, and the product of the activations, read and written once each.
  const double gate_gemm = f.gemm(f.library, f.hidden, 2 * f.tokens * (f.depth + f.hidden));
  const double activation = problem.gated ? 0 : 4 * f.tokens * f.hidden / f.memory + kLaunch;
  cost.dense = gate_gemm + activation + f.products(f.hidden, 0);
  const std::int64_t hot = hot_of(problem);
  if (hot == problem.hidden) {
    cost.gate = gate_gemm;
    cost.hot = cost.dense - gate_gemm;
    return cost;
  }
  const GemmPlan gate = plan_gate(device, problem, hot);
  cost.gate =
      gate.shape == GemmShape::screen32x32 ? screen_gate_seconds(device, problem)
      : streams(gate)                      ? stream_gate_seconds(device, problem)
      : gate.shape == GemmShape::library
          ? library_gate_seconds(device, problem)
          : tile_gate_seconds(device, problem, {gate.block_rows, gate.block_cols, gate.rate});
  if (hot > 0) {
    // Sums in f32, written and read.
    cost.hot = f.products(static_cast<double>(hot), 8 * f.tokens * f.depth);
  }
  cost.gather = f.rows(cold_density, f.projections) + kGatherLatency;
  return cost;
}

FfnCost estimate_ffn(const Device& device, const Problem& problem, double density) {
  Problem none = problem;
  none.hot = 0;
  Problem all = problem;
  all.hot = library_present() ? problem.hidden : 0;
  const FfnCost gathered = estimate_ffn(device, none, density, density);
  const FfnCost multiplied = estimate_ffn(device, all, density, density);
  return gathered.sparse() <= multiplied.sparse() ? gathered : multiplied;
}

}  // namespace twell::cuda
