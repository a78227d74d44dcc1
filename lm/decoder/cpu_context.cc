#include "decoder/cpu_context.h"

#include <ATen/Parallel.h>

namespace twell::lm {

Context& cpu_context() { return thread_context(at::get_num_threads()); }

}  // namespace twell::lm
