#include "decoder/cpu_context.h"

#include <ATen/Parallel.h>

#include <optional>

#include "twell/device.h"

namespace twell::lm {

Context& cpu_context() {
  thread_local std::optional<Context> context;
  const int threads = at::get_num_threads();
  const CpuTier tier = default_cpu_tier();
  if (!context || context->threads() != threads || context->tier() != tier) {
    context.reset();
    context.emplace(ContextOptions{threads, tier});
  }
  return *context;
}

}  // namespace twell::lm
