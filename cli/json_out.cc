#include "cli/json_out.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>

#include "io/atomic_file.h"
#include "io/file_error.h"

namespace twell::cli {

void check_output_file(const std::string& option, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    io::fail_file(option + " " + path, "is a directory, expected a file name");
  }
  const fs::path parent = fs::absolute(path).parent_path();
  if (!fs::is_directory(parent, ignored)) {
    io::fail_file(option + " " + path, "the directory {} does not exist; make it first",
                  parent.string());
  }
  if (access(parent.c_str(), W_OK) != 0) {
    io::fail_file(option + " " + path, "no permission to write into {}", parent.string());
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

}  // namespace twell::cli
