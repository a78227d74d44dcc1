#include "torch_ops/cpu_context.h"

#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "twell/device.h"

namespace twell::torch_ops {

Context& cpu_context() {
  struct Slot {
    std::optional<Context> context;
    std::string tier;
  };
  thread_local Slot slot;
  const int threads = static_cast<int>(torch::stable::get_num_threads());
  const char* variable = std::getenv("TWELL_CPU_TIER");
  const std::string tier = variable == nullptr ? "" : variable;
  if (!slot.context || slot.context->threads() != threads || slot.tier != tier) {
    slot.context.reset();
    slot.context.emplace(ContextOptions{threads, std::nullopt});
    slot.tier = tier;
  }
  return *slot.context;
}

std::string processor_name() { return twell::processor_name(); }

std::string cpu_tier() { return name_of(cpu_context().tier()); }

bool cpu_tier_available(std::string name) {  // by value, as the stable ABI hands it over
  return twell::cpu_tier_available(parse_cpu_tier(name));
}

}  // namespace twell::torch_ops
