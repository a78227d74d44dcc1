#include "twell/steps.h"

#include <algorithm>

#include "ops/forward/gate.h"
#include "ops/forward/sparse_rows.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/validate.h"

namespace twell {
namespace {

// What gathers rows of `packed` into y, block by block: the same work as in ffn() on a copy of the
// matrix that has room for all columns of a tile.
void gather_blocks(Context& context, const TwellMatrix& packed, ConstMatrixView x,
                   const UpDown& weights, MatrixView y) {
  const TwellLayout& layout = packed.layout();
  if (layout.rows == 0) return;
  const std::int64_t block = row_block(context.tier(), layout.rows);
  const TwellView copy = scratch_activation(
      context, {.width = weights.down.cols, .neurons = layout.cols, .dtype = layout.dtype}, block,
      layout.tile);
  const FfnForm form;
  SparseRows work = {kernels_of(context.tier(), layout.dtype), form, copy, weights,
                     sparse_parts(block, context.threads())};
  take_scratch(context, work, block, context.threads());
  for (std::int64_t first = 0; first < layout.rows; first += block) {
    const std::int64_t rows = std::min(block, layout.rows - first);
    std::fill_n(copy.counts, rows * copy.tiles, 0);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t t = 0; t < copy.tiles; ++t) {
        copy.append(r, t, packed.stored(first + r, t), packed.count(first + r, t));
      }
    }
    if (weights.up) work.x = x.slice(first, rows);
    work.y = y.slice(first, rows);
    parallel(context, [&](Team& team) { run_sparse_rows(team, context, work); });
  }
}

}  // namespace

void gemm_relu_twell(Context& context, ConstMatrixView x, const WeightView& weight,
                     const ActivationSpec& activation, TwellMatrix& out) {
  constexpr const char* kOperation = "gemm_relu_twell";
  require_panels(kOperation, "weight", weight);
  require_x(kOperation, x, weight);
  require_activation(kOperation, activation);
  const TwellLayout& layout = out.layout();
  require(layout.rows == x.rows && layout.cols == weight.rows && layout.dtype == x.dtype,
          kOperation, "out", "expected ", name_of(x.dtype), " [", x.rows, ", ", weight.rows,
          "], got ", name_of(layout.dtype), " [", layout.rows, ", ", layout.cols, "]");
  out.clear();
  if (x.rows == 0) return;

  const FfnWeights weights = {weight, {}, {}};
  const FfnShape shape = weights.shape(x.dtype);
  FfnPlan plan = plan_ffn(context, x.rows, shape, GateForm::packed);
  plan.tile = layout.tile;
  plan.row_groups = 1;
  const TwellView packed = scratch_activation(context, shape, plan.row_block, layout.tile);
  Gate gate(context, plan, weights, x.dtype, activation, {}, packed);
  for (std::int64_t first = 0; first < x.rows; first += plan.row_block) {
    const std::int64_t rows = std::min(plan.row_block, x.rows - first);
    gate.begin(x.slice(first, rows));
    parallel(context, [&](Team& team) { gate.run(team); });
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t t = 0; t < packed.tiles; ++t) {
        out.append(first + r, t, packed.slots_of(r, t), packed.count(r, t));
      }
    }
  }
}

void twell_gated_ffn(Context& context, ConstMatrixView x, const TwellMatrix& gate,
                     const WeightView& up, const WeightView& down, MatrixView y) {
  constexpr const char* kOperation = "twell_gated_ffn";
  const TwellLayout& layout = gate.layout();
  require_matrix(kOperation, "x", x, layout.dtype, layout.rows, x.cols);
  require_weight(kOperation, "up", up, layout.dtype, layout.cols, x.cols);
  require_scaled_by(kOperation, "up", up, ScaledBy::row);
  require_weight(kOperation, "down", down, layout.dtype, layout.cols, down.cols);
  require_scaled_by(kOperation, "down", down, ScaledBy::column);
  require_matrix(kOperation, "y", y, layout.dtype, layout.rows, down.cols);
  require_apart(kOperation, "y", y, "x", x);
  gather_blocks(context, gate, x, {context.tier(), layout.dtype, up, down}, y);
}

void twell_spmm(Context& context, const TwellMatrix& hidden, const WeightView& down, MatrixView y) {
  constexpr const char* kOperation = "twell_spmm";
  const TwellLayout& layout = hidden.layout();
  require_weight(kOperation, "down", down, layout.dtype, layout.cols, down.cols);
  require_scaled_by(kOperation, "down", down, ScaledBy::column);
  require_matrix(kOperation, "y", y, layout.dtype, layout.rows, down.cols);
  gather_blocks(context, hidden, {}, {context.tier(), layout.dtype, {}, down}, y);
}

}  // namespace twell
