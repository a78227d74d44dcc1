// The context of a CPU operator call.
#pragma once

#include <string>

#include "twell/context.h"

namespace twell::torch_ops {

// thread_context() with as many threads as PyTorch uses. It holds scratch memory alone, nothing of
// any model.
Context& cpu_context();

// Operators: the processor's name, that of the tier in use, and whether the machine has the tier of
// a name.
std::string processor_name();
std::string cpu_tier();
bool cpu_tier_available(std::string name);

}  // namespace twell::torch_ops
