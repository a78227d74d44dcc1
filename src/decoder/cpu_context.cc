#include "decoder/cpu_context.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace twell::lm {

Context& cpu_context() {
  struct Slot {
    std::optional<Context> context;
    std::string tier;
  };
  thread_local Slot slot;
  // By name: to ask the processor what it has takes 50 us on a virtual machine.
  const char* const variable = std::getenv("TWELL_CPU_TIER");
  const std::string tier = variable == nullptr ? "" : variable;
  const int threads = at::get_num_threads();
  if (!slot.context || slot.context->threads() != threads || slot.tier != tier) {
    slot.context.reset();
    slot.context.emplace(ContextOptions{threads, std::nullopt});
    slot.tier = tier;
  }
  return *slot.context;
}

}  // namespace twell::lm
