#include <omp.h>

#include <algorithm>

#include "ops/gate.h"
#include "ops/validate.h"

namespace twell {

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return "relu";
    case Activation::relu_squared:
      return "relu_squared";
    case Activation::fat_relu:
      return "fat_relu";
  }
  return "?";
}

void gemm_relu_twell(Context& context, ConstMatrixView x, PackedView weight,
                     const ActivationSpec& activation, TwellMatrix& out) {
  constexpr const char* kOperation = "gemm_relu_twell";
  require_packed(kOperation, "weight", weight);
  require_matrix(kOperation, "x", x, weight.dtype, x.rows, weight.cols);
  require_activation(kOperation, activation);
  const TwellLayout& layout = out.layout();
  require(layout.rows == x.rows && layout.cols == weight.rows && layout.dtype == x.dtype,
          kOperation, "out", "expected ", name_of(x.dtype), " [", x.rows, ", ", weight.rows,
          "], got ", name_of(layout.dtype), " [", layout.rows, ", ", layout.cols, "]");
  out.clear();
  if (x.rows == 0) return;

  const GemmReluTwell& kernel = gemm_relu_twell_kernel(context.tier(), x.dtype);
  const GateBlock block = {kernel, {x, weight, kernel.x}, activation, out.view(), 0};
  const std::int64_t rows = row_block(x.rows);
  const std::int64_t row_blocks = (x.rows + rows - 1) / rows;
  const std::int64_t tiles = layout.tiles();
  const auto accumulator_bytes = static_cast<std::size_t>(gemm_accumulators(rows)) * sizeof(float);
  void* prepared = context.scratch(0, kPreparedX, block.input.prepared_bytes());
  for (int t = 0; t < context.threads(); ++t) context.scratch(t, kAccumulators, accumulator_bytes);
#pragma omp parallel num_threads(context.threads())
  {
    auto* accumulators = static_cast<float*>(
        context.scratch(omp_get_thread_num(), kAccumulators, accumulator_bytes));
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < x.rows; ++r) block.input.prepare(r, r + 1, prepared);
#pragma omp for schedule(dynamic)
    for (std::int64_t unit = 0; unit < row_blocks * tiles; ++unit) {
      const std::int64_t row = unit / tiles * rows;
      const std::int64_t tile = unit % tiles;
      run_gate(block, prepared, row, std::min(row + rows, x.rows), tile, tile + 1, accumulators);
    }
  }
}

}  // namespace twell
