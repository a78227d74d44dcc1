// libtwell's context of the calling thread.
#pragma once

#include "twell/context.h"

namespace twell::lm {

// With as many threads as PyTorch uses and the tier that TWELL_CPU_TIER asks for now; remade when
// either changes. It holds scratch memory alone, and goes with the thread.
Context& cpu_context();

}  // namespace twell::lm
