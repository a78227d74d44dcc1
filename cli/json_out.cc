#include "cli/json_out.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/atomic_file.h"
#include "twell/device.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

// The value of "KEY:   1234 kB" in a file of /proc, in bytes.
double kilobytes_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

void check_output_file(const std::string& option, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    throw Error(ErrorKind::environment, option + " " + path,
                "is a directory, expected a file name");
  }
  const fs::path parent = fs::absolute(path).parent_path();
  if (!fs::is_directory(parent, ignored)) {
    throw Error(ErrorKind::environment, option + " " + path,
                "the directory " + parent.string() + " does not exist; make it first");
  }
  if (access(parent.c_str(), W_OK) != 0) {
    throw Error(ErrorKind::environment, option + " " + path,
                "no permission to write into " + parent.string());
  }
}

void check_json_target(const std::string& path) {
  if (path != "-") check_output_file("--json", path);
}

void write_json(const std::string& path, const nlohmann::json& value) {
  if (path.empty()) return;
  // Text of a model may end in the middle of a character.
  const std::string text =
      value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (path == "-") {
    fmt::print("{}", text);
    std::fflush(stdout);
  } else {
    io::write_file_atomically(path, text);
  }
}

nlohmann::json machine_json(int threads) {
  const CpuCaches caches = cpu_caches();
  return {{"processor", processor_name()},
          {"threads", threads},
          {"cpu_tier", name_of(default_cpu_tier())},
          {"l1_bytes", caches.l1},
          {"l2_bytes", caches.l2},
          {"l3_bytes", caches.l3}};
}

double peak_resident_bytes() { return kilobytes_of("/proc/self/status", "VmHWM"); }
double available_bytes() { return kilobytes_of("/proc/meminfo", "MemAvailable"); }

}  // namespace twell::cli
