// A copy of a matrix with rows and columns exchanged, on all threads.
#pragma once

#include "twell/tensor_view.h"

namespace twell {

// in [rows, cols] to out [cols, rows], of one dtype, apart in memory. Throws Error naming the
// argument.
void transpose(ConstMatrixView in, MatrixView out);

}  // namespace twell
