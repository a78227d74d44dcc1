#include "cli/command.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/json_out.h"
#include "cli/version.h"
#include "device/device.h"
#include "files/file_error.h"
#include "files/note.h"
#include "measure/machine.h"
#include "twell/activation.h"
#include "twell/device.h"

namespace twell::cli {

void CommonOptions::check_paths() const {
  namespace fs = std::filesystem;
  struct Path {
    std::string option, given;
    fs::path file;  // with links followed, as far as it is there
  };
  std::vector<Path> read, written;
  for (const CLI::Option* option : command_->get_options()) {
    const std::string type = option->get_type_name(), name = option->get_name();
    if (!type.starts_with("FILE") && type != "DIR" && type != "PATH") continue;
    const auto output = std::ranges::find(outputs_, option, [](const auto& o) { return o.first; });
    for (const std::string& path : option->results()) {
      if (path.empty()) io::fail_argument(name, "is empty: give a path");
      if (path == "-" && name == "--json") continue;  // standard output
      std::error_code ignored;
      const Path one = {name, path, fs::weakly_canonical(path, ignored)};
      (output == outputs_.end() ? read : written).push_back(one);
      if (output != outputs_.end()) check_output_file(name, path, output->second);
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    const Path& one = written[i];
    for (const Path& other : read) {
      if (one.file != other.file) continue;
      io::fail_argument(one.option, "is the file that {} reads: {}", other.option, one.given);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (one.file != written[j].file) continue;
      io::fail_argument(one.option, "is the file that {} writes: {}", written[j].option, one.given);
    }
  }
}

void CommonOptions::begin() {
  check_paths();
  const int granted = default_threads();  // PyTorch knows no quotas
  if (threads > 0 || granted < at::get_num_threads()) {
    at::set_num_threads(threads > 0 ? threads : granted);
  }
  threads = at::get_num_threads();
  device = lm::open_device(device_name);
}

void CommonOptions::put_json(const nlohmann::json& results) const {
  if (json != "-") check_output_file("--json", json, OutputKind::results);  // it is now, too
  nlohmann::json out = results;
  out["twell"] = kVersion;
  out["machine"] = lm::machine_json(threads);
  if (!device.is_cpu()) out["machine"]["gpu"] = lm::runtime_of(device).describe();
  write_json(json, out);
}

void CommonOptions::write(const nlohmann::json& results) const {
  if (json.empty()) return;
  put_json(results);
  if (json != "-") say("Results as JSON: {}\n", json);
}

void CommonOptions::write_so_far(nlohmann::json results) const {
  if (json.empty() || json == "-") return;
  results["complete"] = false;
  put_json(results);
  wrote_so_far_ = true;
}

void CommonOptions::tell_so_far() const {
  if (!std::exchange(wrote_so_far_, false)) return;
  put(stderr, fmt::format("note: {} has what there was until then\n", json));
}

CLI::App& declare_command(CLI::App& parent, const std::string& name, const std::string& description,
                          const std::string& example, CommonOptions& common) {
  CLI::App& command = *parent.add_subcommand(name, description);
  common.command_ = &command;
  command.footer("Example:\n  " + example);
  CLI::Option* json = command.add_option("--json", common.json,
                                         "Write the results as JSON to FILE (- for the terminal)");
  json->type_name("FILE");
  common.writes(json, OutputKind::results);
  command
      .add_option("--threads", common.threads,
                  "Threads (default: one per core that the process may use)")
      ->check(in_range(1, 1024))
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

void add_removed_option(CLI::App& command, const std::string& name, const std::string& instead) {
  const auto refuse = [name, instead](const std::string&) {
    throw CLI::ValidationError(name, "twell has it no longer: " + instead);
  };
  command.add_option_function<std::string>(name, refuse)
      ->expected(0, 1)
      ->group("")
      ->default_str("");
}

CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed,
                             const std::string& description) {
  const auto check = [](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && at == end && !text.empty()) return {};
    return "expected 0 to 18446744073709551615, got " + text;
  };
  return command.add_option("--seed", seed, description)->check(CLI::Validator(check, ""));
}

CLI::Validator in_range(double least, double most) {
  const auto written = [](double x) {
    return x == std::floor(x) && std::abs(x) < 0x1p53 ? fmt::format("{:.0f}", x)
                                                      : fmt::format("{}", x);
  };
  const std::string range = fmt::format("{} to {}", written(least), written(most));
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && at == end && value >= least && value <= most) return {};
    return fmt::format("expected {}, got {}", range, text);
  };
  return CLI::Validator(check, most < 0x1p40 ? range : written(least) + " or more");
}

std::vector<std::string> activation_names(bool thresholds) {
  std::vector<std::string> names;
  for (const Activation kind : kActivations) {
    if (thresholds || !has_threshold(kind)) names.emplace_back(name_of(kind));
  }
  return names;
}

}  // namespace twell::cli
