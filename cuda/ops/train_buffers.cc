#include "cuda/ops/train_buffers.h"

#include <algorithm>

#include "cuda/ops/library_gemm.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

// Chunks of neurons that teams share have room for so many sums: 12 MB for each 512 columns.
constexpr int kNeuronPartials = 2048;

std::int64_t cold_of(const TrainPlan& plan) {
  return plan.forward.problem.neurons - plan.forward.hot;
}

// A queue of `rows` rows; its counters are of `zeroed`, from there on.
RowQueue carve_queue(Carver& carver, std::int64_t rows, int partials, int chunk,
                     std::uint32_t* counters, std::int64_t groups) {
  RowQueue queue;
  queue.capacity = static_cast<int>(rows) + partials;
  queue.partials = partials;
  queue.chunk = chunk;
  queue.items = carver.take<RowItem>(queue.capacity);
  queue.first_partial = carver.take<std::int32_t>(rows);
  queue.counters = counters;
  queue.finished = counters == nullptr ? nullptr : counters + kItemsTaken + groups;
  return queue;
}

std::int64_t counters_of(std::int64_t rows, std::int64_t groups) {
  return kItemsTaken + groups + rows * groups;
}

}  // namespace

KeptBuffers carve_kept(Carver& carver, const TrainPlan& plan) {
  const std::int64_t rows = plan.forward.problem.tokens;
  const std::int64_t cold = cold_of(plan);
  KeptBuffers kept;
  kept.hot_stride = round_up(plan.forward.hot, kVector);
  kept.hot_g = carver.take<std::uint16_t>(rows * kept.hot_stride);
  if (plan.forward.problem.gated) kept.hot_u = carver.take<std::uint16_t>(rows * kept.hot_stride);
  if (cold == 0) return kept;
  kept.fired.stride = static_cast<int>(round_up(ceil_div(cold, 32), kFiredWords));
  kept.fired.words = carver.take<std::uint32_t>(rows * kept.fired.stride);
  kept.offsets = carver.take<std::int64_t>(rows + 1);
  kept.values = carver.take<std::uint32_t>(plan.kept_places);
  return kept;
}

BackwardBuffers carve_backward(Carver& carver, const TrainPlan& plan) {
  const Problem& problem = plan.forward.problem;
  const std::int64_t rows = problem.tokens;
  const std::int64_t hot = plan.forward.hot;
  const std::int64_t cold = cold_of(plan);
  BackwardBuffers b;
  if (hot > 0) {
    const std::int64_t stride = round_up(hot, kVector);
    const int projections = problem.gated ? 2 : 1;
    b.library = carver.take<std::byte>(kLibraryWorkspace);
    b.dh = carver.take<std::uint16_t>(rows * stride);
    b.h = carver.take<std::uint16_t>(rows * stride);
    b.dv_stride = projections * stride;
    b.dv = carver.take<std::uint16_t>(rows * b.dv_stride);
    if (problem.gated) {
      b.weights_stride = round_up(problem.width, kVector);
      b.weights = carver.take<std::uint16_t>(b.dv_stride * b.weights_stride);
    }
  }
  if (cold == 0) return b;
  if (hot > 0) {
    b.sums_stride = round_up(problem.width, kVector);
    b.sums = carver.take<float>(rows * b.sums_stride);
  }
  const std::int64_t row_groups = plan.rows.passes;
  const std::int64_t neuron_groups = ceil_div(problem.width, kGradientColumns);
  const std::int64_t of_rows = counters_of(rows, row_groups);
  b.zeroed_count = of_rows + counters_of(cold, neuron_groups);
  b.zeroed = carver.take<std::uint32_t>(b.zeroed_count);
  std::uint32_t* of_neurons = b.zeroed == nullptr ? nullptr : b.zeroed + of_rows;
  TransposeArgs& t = b.transpose;
  t.rows = static_cast<int>(rows);
  t.cols = static_cast<int>(cold);
  t.blocks = static_cast<int>(std::max<std::int64_t>(ceil_div(rows, kTransposeRows), 1));
  t.row_queue =
      carve_queue(carver, rows, plan.rows.partials, plan.rows.chunk, b.zeroed, row_groups);
  const auto neuron_partials = static_cast<int>(std::min<std::int64_t>(
      cold * ceil_div(std::max<std::int64_t>(rows, 1), kWindow), kNeuronPartials));
  t.neuron_queue = carve_queue(carver, cold, neuron_partials, kWindow, of_neurons, neuron_groups);
  t.counts = carver.take<std::int32_t>(std::int64_t{t.blocks + 1} * 32 *
                                       round_up(ceil_div(cold, 32), kFiredWords));
  t.starts = carver.take<std::int32_t>(cold + 1);
  // A row that begins in a turn ends in it.
  const std::int64_t places = plan.turn_places + cold;
  t.places = carver.take<std::uint32_t>(places);
  b.gradients = carver.take<PlaceGradient>(places);
  b.row_partial = carver.take<float>((std::int64_t{plan.rows.partials} + plan.rows.blocks) *
                                     row_groups * plan.rows.block_floats);
  const std::int64_t warps = std::int64_t{plan.neuron_blocks} * (kGradientThreads / 32);
  b.neuron_partial =
      carver.take<float>((neuron_partials + warps) * neuron_groups * kGradientFloats);
  return b;
}

}  // namespace twell::cuda
