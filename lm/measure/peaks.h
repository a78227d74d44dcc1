// What this machine can do at best, measured: for the floor of a benchmark.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "synth/synthetic.h"

namespace twell::lm {

struct Peaks {
  double bytes_per_us = 0;  // reading memory with all threads
  double flops_per_us = 0;  // PyTorch's best square GEMM of the type
};
// About a second. Uses PyTorch's thread count.
Peaks measure_peaks(at::ScalarType dtype);

// Work of one layer on `tokens` tokens with `nnz` non-zeros each. Bytes are those of weights that
// have to be read at least once, and of x and y.
struct FfnWork {
  double dense_bytes = 0, dense_flops = 0;
  double sparse_bytes = 0, sparse_flops = 0;
};
// `distinct` neurons fire for at least one of the tokens.
FfnWork ffn_work(std::int64_t tokens, const SyntheticShape& shape, double nnz, double distinct);

}  // namespace twell::lm
