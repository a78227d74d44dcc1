// cuBLAS's own calls lie with those of cuBLASLt. Only for tests.
#pragma once

#include "cublasLt.h"
