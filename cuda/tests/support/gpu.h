// The GPU that tests run on, or why there is none.
#pragma once

#include <gtest/gtest.h>

#include "twell/cuda.h"

#define TWELL_NEEDS_GPU() \
  if (twell::cuda::device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU on this machine"

// cuBLASLt is there, on a GPU or played by the emulation.
#define TWELL_NEEDS_LIBRARY() \
  TWELL_NEEDS_GPU();          \
  if (!twell::cuda::library_present()) GTEST_SKIP() << "no libcublasLt.so"
