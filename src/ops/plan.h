// Plans of the operations beside ffn(), whose plan is public.
#pragma once

#include "twell/device.h"

namespace twell {

// Rows of one pass over `rows`.
std::int64_t row_block(CpuTier tier, std::int64_t rows);
// Those of `rows` >= 1 that a GEMM takes at a time, with `width` inputs
// (TierTuning::gemm_l2_share).
std::int64_t gemm_rows(CpuTier tier, std::int64_t rows, std::int64_t width);
// Parts in which a row is gathered: 1 from three rows per thread on. rows >= 1.
int sparse_parts(std::int64_t rows, int threads);

}  // namespace twell
