// Plans of the operations beside ffn(), whose plan is public.
#pragma once

#include "twell/device.h"

namespace twell {

// Rows of one pass of the GEMM over `rows`.
std::int64_t row_block(CpuTier tier, std::int64_t rows);

}  // namespace twell
