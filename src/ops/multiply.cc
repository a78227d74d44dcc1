#include "ops/multiply.h"

namespace twell {

ProductPieces::ProductPieces(const Context& context, std::int64_t all_rows, const Weight& weight)
    : rows(all_rows),
      row_block(gemm_rows(context.tier(), twell::row_block(context.tier(), rows), weight.cols)),
      panels(packed_panels(weight.rows)) {
  // Four panels at least, what a register kernel takes at once; where those are too few for the
  // threads, fewer rows, which read the weight more often.
  constexpr std::int64_t kLeastRows = 64;
  while (row_block >= 2 * kLeastRows &&
         (rows + row_block - 1) / row_block * panels / 4 < context.threads()) {
    row_block = (row_block / 2 + 31) / 32 * 32;
  }
  const std::int64_t row_blocks = (rows + row_block - 1) / row_block;
  // Four pieces per thread at least.
  step = std::clamp<std::int64_t>(row_blocks * panels / (4L * context.threads()) / 4 * 4, 4,
                                  kColumnBlock / kPanel);
}

}  // namespace twell
