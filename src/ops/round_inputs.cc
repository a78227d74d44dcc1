#include "core/team.h"
#include "kernels/kernel.h"
#include "ops/validate.h"
#include "twell/linear.h"

namespace twell {

void round_inputs(Context& context, ConstMatrixView x, MatrixView y) {
  constexpr const char* kOperation = "round_inputs";
  require(x.dtype != DType::f16, kOperation, "x", "expected bf16 or f32, got f16");
  require_view(kOperation, "x", x);
  require_matrix(kOperation, "y", y, x.dtype, x.rows, x.cols);
  const Kernels& kernels = kernels_of(context.tier(), x.dtype);
  parallel_for(context, x.rows, [&](std::int64_t r) {
    kernels.round_inputs(x.row_bytes(r), x.cols, y.row_bytes(r));
  });
}

}  // namespace twell
