#include "cli/command.h"

#include <ATen/Parallel.h>

#include "cli/json_out.h"
#include "measure/machine.h"
#include "models/device.h"
#include "twell/activation.h"

namespace twell::cli {

void CommonOptions::begin() {
  check_json_target(json);
  if (threads > 0) at::set_num_threads(threads);
  threads = at::get_num_threads();
  device = lm::open_device(device_name);
}

void CommonOptions::write(const nlohmann::json& results) const {
  if (json.empty()) return;
  nlohmann::json out = results;
  out["twell"] = TWELL_VERSION;
  out["machine"] = measure::machine_json(threads);
  if (!device.is_cpu()) out["machine"]["gpu"] = lm::runtime_of(device).describe();
  write_json(json, out);
  if (json != "-") say("Results as JSON: {}\n", json);
}

CLI::App& declare_command(CLI::App& parent, const std::string& name, const std::string& description,
                          const std::string& example, CommonOptions& common) {
  CLI::App& command = *parent.add_subcommand(name, description);
  command.footer("Example:\n  " + example);
  command
      .add_option("--json", common.json, "Write the results as JSON to FILE (- for the terminal)")
      ->type_name("FILE");
  command.add_option("--threads", common.threads, "Threads (default: one per core)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command.option_defaults()->always_capture_default();  // --help shows them
  return command;
}

void add_device_option(CLI::App& command, CommonOptions& common) {
  command
      .add_option("--device", common.device_name,
                  "cpu, cuda or cuda:N (an NVIDIA GPU of compute capability 8.0 or above)")
      ->type_name("NAME");
}

void add_paths_option(CLI::App& command, const std::string& name, std::vector<std::string>& paths,
                      const std::string& description) {
  command.add_option(name, paths, description)->required()->type_name("PATH")->default_str("");
}

std::vector<std::string> activation_names(bool thresholds) {
  std::vector<std::string> names;
  for (const Activation kind : kActivations) {
    if (thresholds || !has_threshold(kind)) names.emplace_back(name_of(kind));
  }
  return names;
}

}  // namespace twell::cli
