#include "torch_ops/cpu_context.h"

#include <torch/csrc/stable/ops.h>

#include <string>

#include "twell/device.h"

namespace twell::torch_ops {

Context& cpu_context() {
  return thread_context(static_cast<int>(torch::stable::get_num_threads()));
}

std::string processor_name() { return twell::processor_name(); }

std::string cpu_tier() { return name_of(cpu_context().tier()); }

bool cpu_tier_available(std::string name) {  // by value, as the stable ABI hands it over
  return twell::cpu_tier_available(parse_cpu_tier(name));
}

}  // namespace twell::torch_ops
