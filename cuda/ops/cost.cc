// What the two paths of a layer are expected to take, from the rates of the GPU's data sheet; the
// formula is explained in docs/gpu-model.md.
//
// Every kernel is bound by the largest of what it computes and what it reads. The shares of a rate
// that real kernels reach are estimates until they are measured; only the ratio of the two paths is
// used, and callers correct that by measurements (cuda/layer/measured_cost.h).
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda/kernels/shapes.h"
#include "cuda/ops/figures.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

// Of a thread to round one input of a token, and to multiply it: read from the machine code, 13.6.
constexpr double kRoundInstructions = 14;

// Adds what a call takes, or so many parts of it that are alike, with so many neurons hot.
void add_rows(FfnCost& cost, double parts, const Device& device, const Problem& problem,
              std::int64_t hot, bool joined, double cold_density, bool part) {
  const Figures f(device, problem);
  cost.gate += parts * gate_seconds(device, problem, plan_gate(device, problem, hot, joined), part);
  if (hot > 0) {
    const auto cols = static_cast<double>(hot);
    const double loss =
        part ? loss_of_blocks(device, problem.tokens, problem.tokens, problem.width) : 1;
    cost.hot += parts * (f.down(cols, 1 / loss) + (joined ? 0 : f.up(cols)));
  }
  if (hot == problem.neurons) return;
  if (hot > 0) {
    // Sums in f32, written by the GEMM and read by the gather.
    const double bytes = 4 * f.tokens * f.width;
    const bool stays = stays_in_l2(device, problem.tokens, problem.width, 4, kSumsShare);
    cost.hot += parts * (stays ? bytes / f.l2 : 2 * bytes / f.memory);
  }
  cost.gather += parts * (f.rows(cold_density, f.projections) + kGatherLatency);
}

void add_sparse(FfnCost& cost, const Device& device, const Problem& problem, std::int64_t hot,
                bool joined, double cold_density) {
  if (waits_for_up(problem, hot, joined)) {
    const Figures f(device, problem);
    cost.gate += f.gate();
    cost.hot += f.up(f.neurons) + f.down(f.neurons);
    return;
  }
  const std::int64_t rows = std::max<std::int64_t>(rows_at_a_time(device, problem, hot), 1);
  const auto add = [&](std::int64_t tokens, double parts) {
    Problem part = problem;
    part.tokens = tokens;
    add_rows(cost, parts, device, part, hot, joined, cold_density, rows < problem.tokens);
  };
  if (const std::int64_t n = problem.tokens / rows; n > 0) add(rows, static_cast<double>(n));
  if (problem.tokens % rows > 0 || problem.tokens == 0) add(problem.tokens % rows, 1);
}

}  // namespace

bool joins(const Device& device, const Problem& problem, std::int64_t hot) {
  // u has to start at 16 bytes.
  if (!problem.joined || hot == 0 || problem.neurons % kVector != 0) return false;
  FfnCost joined, separate;  // what is gathered does not depend on it
  add_sparse(joined, device, problem, hot, true, 0);
  add_sparse(separate, device, problem, hot, false, 0);
  return joined.sparse() < separate.sparse();
}

double gate_seconds(const Device& device, const Problem& problem, const GemmPlan& plan, bool part) {
  if (plan.shape == GemmShape::screen32x32) return screen_gate_seconds(device, problem);
  if (streams(plan)) return stream_gate_seconds(device, problem);
  return plan.shape == GemmShape::library
             ? library_gate_seconds(device, problem, plan, part)
             : tile_gate_seconds(device, problem, {plan.block_rows, plan.block_cols, plan.rate});
}

double tile_gate_seconds(const Device& device, const Problem& problem, const TileShape& shape) {
  const Figures f(device, problem);
  const double own = device.major >= 9 ? kMmaShareFromHopper : kMmaShare;
  const auto blocks = static_cast<double>(ceil_div(problem.tokens, shape.rows) *
                                          ceil_div(problem.neurons, shape.cols));
  // The SM with the most blocks.
  const double each = 2.0 * shape.rows * shape.cols * f.width * device.sm_count /
                      (own * shape.rate * f.rates.tensor_flops);
  return std::max(std::ceil(blocks / device.sm_count) * each,
                  2 * f.width * (f.neurons + f.tokens) / f.memory) +
         kTileLatency + kLaunch;
}

double library_gate_seconds(const Device& device, const Problem& problem, const GemmPlan& plan,
                            bool part) {
  const Figures f(device, problem);
  const std::int64_t blocks = ceil_div(problem.tokens, plan.block_rows);
  const double loss = part || blocks > 1
                          ? loss_of_blocks(device, problem.tokens, plan.block_rows, plan.block_cols)
                          : 1;
  const double cols = plan.block_cols;
  const double value_bytes = plan.wide ? 4 : 2;
  return f.gemm(f.library / loss, cols, 2 * f.tokens * f.width) - kLaunch +
         2 * static_cast<double>(blocks) * kLaunch + f.tokens * cols * value_bytes / f.l2;
}

double stream_gate_seconds(const Device& device, const Problem& problem) {
  const Figures f(device, problem);
  return f.gemm(f.library, f.neurons, 2 * f.tokens * f.width);
}

double screen_gate_seconds(const Device& device, const Problem& problem) {
  const Figures f(device, problem);
  const auto bytes = static_cast<double>(screen_bytes(problem.neurons, problem.width));
  // Every block of neurons rounds x, in groups of eight tokens; the SM with the most blocks.
  const auto blocks = round_up(ceil_div(problem.neurons, ScreenTiles::kNeurons), device.sm_count);
  const auto rounded = static_cast<double>(round_up(problem.tokens, 8) * problem.width * blocks);
  const double rounding = kRoundInstructions * rounded / f.rates.instructions;
  return std::max(bytes / f.memory, rounding) + kScreenLatency +
         problem.candidates * f.tokens * f.neurons * kCandidate + kLaunch;
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
  const double activation = problem.gated ? 0 : 4 * f.tokens * f.neurons / f.memory + kLaunch;
  cost.dense = f.gate() + activation + f.up(f.neurons) + f.down(f.neurons);
  const std::int64_t hot = hot_of(problem);
  add_sparse(cost, device, problem, hot, joins(device, problem, hot), cold_density);
  return cost;
}

FfnCost estimate_ffn(const Device& device, const Problem& problem, double density) {
  Problem none = problem;
  none.hot = 0;
  Problem all = problem;
  all.hot = library_present() ? problem.neurons : 0;
  const FfnCost gathered = estimate_ffn(device, none, density, density);
  const FfnCost multiplied = estimate_ffn(device, all, density, density);
  return gathered.sparse() <= multiplied.sparse() ? gathered : multiplied;
}

}  // namespace twell::cuda
