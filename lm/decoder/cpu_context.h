// libtwell's context of the calling thread.
#pragma once

#include "twell/context.h"

namespace twell::lm {

// thread_context() with as many threads as PyTorch uses.
Context& cpu_context();

}  // namespace twell::lm
