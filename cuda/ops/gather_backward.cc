// Neurons that are not hot in the backward pass: by rows for dx, by neurons for the gradients of
// the weights.
#include "cuda/kernels/common/check.h"
#include "cuda/ops/backward_call.h"

namespace twell::cuda {
namespace {

// From the first neuron on that is not hot.
WeightGradient cold_rows(const BackwardCall& call, const WeightGradient& gradient) {
  const std::int64_t bytes = call.hot() * gradient.stride * (call.wide ? 4 : 2);
  return {static_cast<std::byte*>(gradient.data) + bytes, gradient.stride};
}

// The rows whose first places are those of a turn.
void run_turn(const BackwardCall& call, int turn) {
  const Problem& problem = call.problem();
  const BackwardBuffers& b = call.b;
  TWELL_CUDA_CHECK(
      cudaMemsetAsync(b.zeroed, 0, static_cast<std::size_t>(b.zeroed_count) * 4, call.stream));
  TransposeArgs transpose = b.transpose;
  transpose.fired = call.kept.fired;
  transpose.offsets = call.kept.offsets;
  transpose.range.first = turn * call.plan.turn_places;
  transpose.range.end = transpose.range.first + call.plan.turn_places;
  launch_transpose(transpose, call.stream);

  GatherPlan plan = call.plan.rows;
  plan.aligned = call.aligned;
  BackwardRowsArgs rows;
  rows.dy = call.dy;
  rows.x = call.x;
  rows.gate = rows_from(call.gate, call.hot());
  if (problem.gated) rows.up = rows_from(call.up, call.hot());
  rows.down = rows_from(call.down, call.hot());
  rows.dx = call.dx;
  rows.dx_stride = call.dx_stride;
  rows.depth = static_cast<int>(problem.width);
  rows.fired = call.kept.fired;
  rows.offsets = call.kept.offsets;
  rows.range = transpose.range;
  rows.values = call.kept.values;
  rows.kept = call.plan.kept_places;
  rows.gradients = b.gradients;
  rows.activation = call.activation;
  rows.l1 = call.l1;
  rows.queue = transpose.row_queue;
  rows.partial = b.row_partial;
  rows.sums = b.sums;
  rows.sums_stride = b.sums_stride;
  launch_backward_rows(plan, rows, call.stream);

  BackwardNeuronsArgs neurons;
  neurons.dy = call.dy;
  neurons.x = call.x;
  neurons.depth = rows.depth;
  neurons.gradients = b.gradients;
  neurons.starts = transpose.starts;
  neurons.places = transpose.places;
  neurons.queue = transpose.neuron_queue;
  neurons.partial = b.neuron_partial;
  neurons.gate = cold_rows(call, call.dgate);
  if (problem.gated) neurons.up = cold_rows(call, call.dup);
  neurons.down = cold_rows(call, call.ddown);
  neurons.wide = call.wide;
  neurons.adds = call.accumulate || turn > 0;
  launch_backward_neurons(plan, call.plan.neuron_blocks, neurons, call.stream);
}

}  // namespace

void gather_backward(const BackwardCall& call) {
  for (int turn = 0; turn < call.plan.turns; ++turn) run_turn(call, turn);
}

}  // namespace twell::cuda
