#pragma once

namespace twell::bench {

// Milliseconds of ggml_matmul() for one row by format and by the share of inputs that are not zero,
// weights from memory, beside the time to read all of the blocks.
void print_ggml_downs(int threads);

}  // namespace twell::bench
