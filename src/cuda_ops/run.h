// What the operations share.
#pragma once

#include "kernels/cuda/kernels.h"
#include "twell/cuda.h"

namespace twell::cuda {

ActivationArgs activation_args(const char* operation, const ActivationSpec& activation);

}  // namespace twell::cuda
