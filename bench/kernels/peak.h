// What a core multiplies with all operands in registers: the most that a GEMM may reach.
#pragma once

#include "twell/device.h"

namespace twell::bench {

// Multiplications and additions a second of one core, in kernels of `tier`; 0: not known.
double peak_bf16(CpuTier tier);
double peak_int8(CpuTier tier);

}  // namespace twell::bench
