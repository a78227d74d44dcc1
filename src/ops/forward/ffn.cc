// The whole layer, block of rows by block of rows: the threads share the gate's tiles, then the
// rows.
#include <algorithm>
#include <atomic>

#include "ops/forward/counts.h"
#include "ops/forward/gate.h"
#include "ops/forward/hot_neurons.h"
#include "ops/forward/not_finite.h"
#include "ops/forward/sparse_rows.h"
#include "ops/scratch.h"
#include "ops/validate.h"

namespace twell {
namespace {

// Whether y of a row is NaN by a neuron that it does not fire. In scratch of run_sparse_rows().
bool skips_nan(Context& context, const SparseRows& work, std::int64_t row, int thread) {
  const std::int64_t count = work.packed.row_count(row);
  if (count == work.weights.down.rows ||
      work.kernels.all_finite(work.x.row_bytes(row), work.x.cols)) {
    return false;
  }
  auto* fired = static_cast<std::int32_t*>(context.scratch(thread, kActive, 0));
  auto* values = reinterpret_cast<float*>(fired + work.packed.tiles * work.packed.tile);
  work.packed.list_row(row, fired, values);
  return skips_nan(work.form, *work.weights.up, work.x.row_bytes(row), {fired, values, count});
}

// Adds those of a block of rows from `first` on.
void add_counts(const TwellView& packed, std::int64_t first, std::int64_t rows,
                const std::int32_t* neuron_nnz, FfnCounts& counts) {
  for (std::int64_t r = 0; r < rows; ++r) {
    counts.row_nnz[static_cast<std::size_t>(first + r)] = packed.row_count(r);
  }
  for (std::int64_t& n : counts.neuron_nnz) n += *neuron_nnz++;
}

}  // namespace

void require_ffn(const char* operation, ConstMatrixView x, const FfnWeights& weights,
                 const FfnForm& form, MatrixView y) {
  const FfnShape shape = weights.shape(x.dtype);
  const ScreenView& screen = weights.screen;
  require_weight_shape(operation, "gate", weights.gate.type, shape.neurons, shape.width);
  require_x(operation, x, weights.gate);
  const auto weight = [&](const char* name, const WeightView& view, std::int64_t cols) {
    require_weight(operation, name, view, shape.dtype, shape.neurons, cols);
  };
  if (weights.form() == GateForm::packed) {
    require_panels(operation, "gate", weights.gate);
    require(screen.data == nullptr, operation, "screen", "expected none of a packed gate");
  } else {
    require(!has_scales(weights.gate.type), operation, "gate", "expected a packed weight, got ",
            name_of(weights.gate.type), " as stored, which no screen is made of");
    weight("gate", weights.gate, shape.width);
    require(screen.data != nullptr, operation, "gate",
            "expected a packed weight, or one as stored and its screen");
    require_prepared(screen.data, operation, "screen");
    require(screen.rows == shape.neurons && screen.cols == shape.width, operation, "screen",
            "expected that of [", shape.neurons, ", ", shape.width, "], got that of [", screen.rows,
            ", ", screen.cols, "]");
  }
  if (weights.up) {
    weight("up", *weights.up, shape.width);
    require_scaled_by(operation, "up", *weights.up, ScaledBy::row);
  }
  weight("down", weights.down, weights.down.cols);
  require_scaled_by(operation, "down", weights.down, ScaledBy::column);
  require_matrix(operation, "y", y, shape.dtype, x.rows, weights.down.cols);
  require_apart(operation, "y", y, "x", x);
  require_form(operation, form, shape, weights.down.cols);
}

void ffn(Context& context, ConstMatrixView x, const FfnWeights& weights, const FfnForm& form,
         MatrixView y, FfnCounts* counts) {
  require_ffn("ffn", x, weights, form, y);
  const FfnShape shape = weights.shape(x.dtype);
  if (counts != nullptr) *counts = zero_counts(x.rows, shape.neurons);
  if (x.rows == 0) return;
  const FfnPlan plan = plan_ffn(context, x.rows, shape, weights.form());

  // Everything is allocated before the threads start: nothing in them may throw.
  const TwellView packed = scratch_activation(context, shape, plan.row_block, plan.tile);
  const Kernels& kernels = kernels_of(plan.tier, x.dtype);
  const UpDown up_down(plan.tier, x.dtype, weights);
  Gate gate(context, plan, weights, x.dtype, form.gate, form.gate_bias, packed);
  HotNeurons hot(context, plan, shape, up_down, form);
  SparseRows sparse = {kernels, form, packed, up_down, plan.row_parts, plan.gather_columns};
  take_scratch(context, sparse, plan.row_block, plan.threads);
  std::vector<std::uint8_t> nan_rows(static_cast<std::size_t>(plan.row_block));
  const bool counting = counts != nullptr || plan.hot_share <= 1.0;
  for (std::int64_t first = 0; first < x.rows; first += plan.row_block) {
    const std::int64_t rows = std::min(plan.row_block, x.rows - first);
    gate.begin(x.slice(first, rows));
    sparse.x = x.slice(first, rows);
    sparse.y = y.slice(first, rows);
    std::atomic<std::int64_t> candidates = 0;
    parallel(context, [&](Team& team) {
      candidates += gate.run(team);
      if (weights.up) {  // before hot neurons leave the packed gate
        team.for_static_nowait(rows, [&](std::int64_t r) {
          nan_rows[static_cast<std::size_t>(r)] = skips_nan(context, sparse, r, team.thread());
        });
      }
      if (counting) hot.count(team, gate);
      if (counts != nullptr) {
        team.single([&] { add_counts(packed, first, rows, hot.neuron_nnz(), *counts); });
      }
      if (hot.size() > 0) {
        hot.take(team, gate);
        gate.prepare_x(team);
        hot.multiply(team, gate);
      }
      SparseRows rest = sparse;
      rest.sums = hot.sums();
      rest.squares = hot.squares();
      run_sparse_rows(team, context, rest);
    });
    for (std::int64_t r = 0; weights.up && r < rows; ++r) {
      if (nan_rows[static_cast<std::size_t>(r)] != 0) fill_nan(sparse.y, r);
    }
    if (counts != nullptr) counts->candidates += candidates;
  }
}

}  // namespace twell
