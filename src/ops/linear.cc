#include "twell/linear.h"

#include "ops/multiply.h"
#include "ops/product_rows.h"

namespace twell {

void linear(Context& context, ConstMatrixView x, const WeightView& weight, const void* bias,
            MatrixView y) {
  constexpr const char* kOperation = "linear";
  require_panels(kOperation, "weight", weight);
  require_x(kOperation, x, weight);
  require_product(kOperation, x, weight.rows, y);
  // A kernel may want a copy of x, in scratch that stays: 16 MiB of bf16 at D = 2048, 9 of terms.
  const std::int64_t most_rows = has_scales(weight.type) ? 1024 : 4096;
  const Weight w(context.tier(), x.dtype, weight);
  const ProductRows to(context, y);
  for (std::int64_t first = 0; first < x.rows; first += most_rows) {
    const std::int64_t rows = std::min(most_rows, x.rows - first);
    multiply(context, x.slice(first, rows), w,
             [&](std::int64_t row, std::int64_t column, std::int64_t width, float* c) {
               for (std::int64_t j = 0; bias != nullptr && j < width; ++j) {
                 c[j] += x.dtype == DType::f32
                             ? static_cast<const float*>(bias)[column + j]
                             : static_cast<float>(static_cast<const bf16*>(bias)[column + j]);
               }
               to.put(first + row, column, width, c);
             });
  }
}

}  // namespace twell
