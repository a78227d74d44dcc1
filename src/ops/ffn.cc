// The whole layer, block of rows by block of rows: the threads share the gate's tiles, then the
// rows.
#include <omp.h>

#include <algorithm>

#include "ops/gate.h"
#include "ops/hot_neurons.h"
#include "ops/screened.h"
#include "ops/sparse_rows.h"
#include "ops/validate.h"

namespace twell {
namespace {

constexpr const char* kOperation = "ffn";

void check(ConstMatrixView x, const FfnWeights& weights, const ActivationSpec& activation,
           MatrixView y) {
  if (weights.screened()) {
    require_screened(kOperation, weights);
  } else {
    require_packed(kOperation, "weights.gate", weights.gate);
  }
  const DType dtype = weights.gate.dtype;
  const std::int64_t hidden = weights.gate.rows;
  require_matrix(kOperation, "x", x, dtype, x.rows, weights.gate.cols);
  if (weights.gated()) require_matrix(kOperation, "weights.up", weights.up, dtype, hidden, x.cols);
  require_matrix(kOperation, "weights.down", weights.down, dtype, hidden, weights.down.cols);
  require_matrix(kOperation, "y", y, dtype, x.rows, weights.down.cols);
  require_activation(kOperation, activation);
}

// The packed gate of one block, in scratch. A row's list starts 16 slots past a multiple of the
// tile, so that the starts of all rows do not fall into the same cache sets.
TwellView scratch_gate(Context& context, const TwellLayout& layout) {
  TwellView view;
  view.tiles = layout.tiles();
  view.tile = layout.tile;
  view.capacity = layout.capacity + 16;
  view.slot_bytes = slot_bytes(layout.dtype);
  const auto cells = static_cast<std::size_t>(layout.rows * view.tiles);
  view.counts =
      static_cast<std::int32_t*>(context.scratch(0, kCounts, cells * sizeof(std::int32_t)));
  view.slots = static_cast<std::byte*>(context.scratch(
      0, kSlots, cells * static_cast<std::size_t>(view.capacity) * view.slot_bytes));
  return view;
}

}  // namespace

void ffn(Context& context, ConstMatrixView x, const FfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, FfnStats* stats) {
  check(x, weights, activation, y);
  if (stats != nullptr)
    stats->rows = x.rows, stats->nnz = 0, stats->max_row_nnz = 0, stats->candidates = 0;
  if (x.rows == 0) return;
  const FfnPlan plan = plan_ffn(context, x.rows, weights);
  const GemmReluTwell& kernel = gemm_relu_twell_kernel(plan.tier, x.dtype);
  const TwellView packed = scratch_gate(context, plan.layout);
  const std::int64_t tiles = packed.tiles;

  GateBlock gate = {
      kernel, {rows_of(x, 0, plan.row_block), weights.gate, kernel.x}, activation, packed, 0};
  SparseRows sparse;
  sparse.tier = plan.tier;
  sparse.packed = packed;
  sparse.up = weights.up;
  sparse.down = weights.down;
  sparse.rows = plan.row_block;

  // Everything is allocated before the threads start: nothing in them may throw.
  const ScreenedBlock screened(context, plan, weights);
  HotNeurons hot(context, plan, weights, plan.row_block);
  void* prepared = context.scratch(0, kPreparedX, gate.input.prepared_bytes());
  const std::size_t list = active_bytes(tiles * packed.tile);
  // In parts, a block has at most four rows times parts per thread (sparse_parts).
  const auto row_sum = static_cast<std::size_t>(weights.down.cols) * sizeof(float);
  context.scratch(0, kPartialY, 4 * static_cast<std::size_t>(plan.threads) * row_sum);
  const auto sums = static_cast<std::size_t>(gemm_accumulators(plan.row_block)) * sizeof(float);
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kAccumulators, sums);
    context.scratch(t, kActive, list);
    context.scratch(t, kPartialY, row_sum);
  }
  for (std::int64_t first = 0; first < x.rows; first += plan.row_block) {
    const std::int64_t rows = std::min(plan.row_block, x.rows - first);
    gate.input.x = rows_of(x, first, rows);
    sparse.x = gate.input.x;
    sparse.y = rows_of(y, first, rows);
    sparse.rows = rows;
    sparse.parts = sparse_parts(rows, plan.threads);
    std::fill_n(packed.counts, rows * tiles, 0);
    std::int64_t candidates = 0;
#pragma omp parallel num_threads(plan.threads)
    {
      const int thread = omp_get_thread_num();
      auto* accumulators = static_cast<float*>(context.scratch(thread, kAccumulators, sums));
      if (gate.input.prepared_bytes() > 0) {
#pragma omp for schedule(static)
        for (std::int64_t r = 0; r < rows; ++r) gate.input.prepare(r, r + 1, prepared);
      }
      if (weights.screened()) {
#pragma omp for schedule(static)
        for (std::int64_t r = 0; r < rows; ++r) screened.prepare(gate, r);
      }
#pragma omp for schedule(static, 1) reduction(+ : candidates)
      for (std::int64_t unit = 0; unit < tiles * plan.row_splits; ++unit) {
        const std::int64_t tile = unit / plan.row_splits;
        const std::int64_t group = unit % plan.row_splits;
        const std::int64_t begin = rows * group / plan.row_splits;
        const std::int64_t end = rows * (group + 1) / plan.row_splits;
        if (weights.screened()) {
          candidates += screened.run(gate, begin, end, tile, thread);
        } else {
          run_gate(gate, prepared, begin, end, tile, tile + 1, accumulators);
        }
      }
      if (stats != nullptr || plan.hot_share <= 1.0) hot.count(gate, stats, first);
      if (hot.size() > 0) {
        hot.take(gate);
        hot.multiply(gate, prepared, thread);
      }
      SparseRows rest = sparse;
      rest.sums = hot.sums();
      void* partial_y = context.scratch(sparse.parts > 1 ? 0 : thread, kPartialY, row_sum);
      run_sparse_rows(rest, context.scratch(thread, kActive, list), static_cast<float*>(partial_y));
    }
    if (stats != nullptr) stats->candidates += candidates;
  }
}

}  // namespace twell
