// The GPU that tests run on, or why there is none.
#pragma once

#include <gtest/gtest.h>

#include "twell/cuda.h"

#define TWELL_NEEDS_GPU() \
  if (twell::cuda::device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU on this machine"
