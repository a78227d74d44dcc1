#include <algorithm>
#include <numeric>

#include "core/team.h"
#include "ops/validate.h"
#include "ops/weight.h"
#include "twell/linear.h"

namespace twell {

// Sampled dot products, of all neurons in order: values = 1 · dot(x, W[n]).
void linear_as_stored(Context& context, ConstMatrixView x, const WeightView& weight, MatrixView y) {
  constexpr const char* kOperation = "linear_as_stored";
  // 256 KB at D = 2048: from the second row of x on, a piece comes from L2.
  constexpr std::int64_t kPiece = 64;
  require_weight_shape(kOperation, "weight", weight.type, weight.rows, weight.cols);
  require_matrix(kOperation, "x", x, x.dtype, x.rows, x.cols);
  require_weight(kOperation, "weight", weight, x.dtype, weight.rows, x.cols);
  require_scaled_by(kOperation, "weight", weight, ScaledBy::row);
  require_matrix(kOperation, "y", y, x.dtype, x.rows, weight.rows);
  require_apart(kOperation, "y", y, "x", x);

  const Kernels& kernels = kernels_of(context.tier(), x.dtype);
  const Weight w(context.tier(), x.dtype, weight);
  const auto element = static_cast<std::int64_t>(size_of(y.dtype));
  const std::int64_t pieces = (weight.rows + kPiece - 1) / kPiece;
  // Each thread goes through a stretch of memory of its own.
  parallel_for(context, pieces, [&](std::int64_t piece) {
    const std::int64_t first = piece * kPiece;
    const std::int64_t count = std::min(kPiece, weight.rows - first);
    std::int32_t outputs[kPiece];
    std::iota(outputs, outputs + count, static_cast<std::int32_t>(first));
    for (std::int64_t row = 0; row < x.rows; ++row) {
      float values[kPiece];
      w.dots(x.row_bytes(row), outputs, count, values);
      kernels.round_row(values, count, y.row_bytes(row) + first * element);
    }
  });
}

}  // namespace twell
