// twell info: what is installed and what it runs on, as `python -m twell info` says it of the
// package.
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/version.h"
#include "device/calibration.h"
#include "device/device.h"
#include "twell/device.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

struct InfoCommand : CommonOptions {};

// Of the first GPU; empty where there is none that the program could use.
std::string gpu() {
  try {
    return lm::runtime_of(lm::open_device("cuda")).describe();
  } catch (const Error&) {
    return {};
  }
}

void run(InfoCommand& o) {
  const CpuTier tier = default_cpu_tier();
  const CpuCaches caches = cpu_caches();
  std::vector<std::string> tiers;
  for (const CpuTier one : available_cpu_tiers()) tiers.emplace_back(name_of(one));
  const bool calibrated = !lm::load_cost_model(tier, o.threads).measured_on.empty();
  const std::string file = lm::calibration_file().string(), found = gpu();
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"twell", kVersion},
      {"PyTorch", TORCH_VERSION},
      {"processor", processor_name()},
      {"tier", fmt::format("{}, of {} (TWELL_CPU_TIER=NAME forces another)", name_of(tier),
                           fmt::join(tiers, ", "))},
      {"threads", fmt::format("{}", o.threads)},
      {"caches", fmt::format("L1 {}, L2 {}, L3 {}", format_binary(caches.l1),
                             format_binary(caches.l2), format_binary(caches.l3))},
      {"GPUs", found.empty() ? "none that twell can use" : found},
      {"calibration", calibrated ? file : "none: twell calibrate measures this machine"}};
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  for (const auto& [name, value] : rows) {
    o.say("{:<{}}  {}\n", name, width, wrapped(value, width + 2, width + 2));
  }
  o.write({{"tier", name_of(tier)},
           {"tiers", tiers},
           {"torch", TORCH_VERSION},
           {"gpus", found.empty() ? nlohmann::json::array() : nlohmann::json::array({found})},
           {"calibration", calibrated ? nlohmann::json(file) : nlohmann::json(nullptr)}});
}

}  // namespace

void add_info(CLI::App& app) {
  add_command<InfoCommand>(app, "info", "Show what is installed and what it runs on", "twell info",
                           run);
}

}  // namespace twell::cli
