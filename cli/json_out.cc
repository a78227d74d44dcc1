#include "cli/json_out.h"

#include <unistd.h>

#include <filesystem>

#include "cli/svg.h"
#include "cli/terminal.h"
#include "files/activity_trace.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/mapped_file.h"
#include "files/run_directory.h"
#include "tokenizer/token_shard.h"

namespace twell::cli {
namespace fs = std::filesystem;

namespace {

bool is_earlier_output(const std::string& path, OutputKind kind) {
  const io::MappedFile file{fs::path(path)};
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  switch (kind) {
    case OutputKind::token_shard:
      return text.starts_with(io::kTokenShardMagic);
    case OutputKind::trace:
      return text.starts_with(io::kActivityTraceMagic);
    case OutputKind::chart:
      return text.starts_with("<svg ") && text.substr(0, 4096).find(kChartMark) != text.npos;
    case OutputKind::results:
      constexpr std::size_t kLargest = 256 << 20;
      if (text.size() > kLargest) return false;
      const auto json = nlohmann::json::parse(text, nullptr, false);
      return json.is_object() && json.contains("twell") && json["twell"].is_string();
  }
  return false;
}

}  // namespace

void check_output_file(const std::string& option, const std::string& path, OutputKind kind) {
  const std::string what = option + " " + path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) io::fail_file(what, "is a directory, expected a file name");
  const fs::path parent = fs::absolute(path).parent_path();
  if (!fs::is_directory(parent, ignored)) {
    io::fail_file(what, "the directory {} does not exist; make it first", parent.string());
  }
  if (fs::is_regular_file(path, ignored) && fs::file_size(path, ignored) > 0 &&
      !is_earlier_output(path, kind)) {
    io::fail_file(what, "is there already and is no earlier output: give another name");
  }
  const io::AtomicFile probe{fs::path(path)};
}

void check_output_directory(const std::string& option, const std::string& path) {
  const std::string what = option + " " + path;
  std::error_code error;
  if (!io::is_free_directory(path)) {
    io::fail_file(what, "is there already and is not empty: choose another directory");
  }
  fs::path parent = fs::absolute(path).lexically_normal();
  if (!parent.has_filename()) parent = parent.parent_path();  // "dir/"
  while (!fs::exists(parent, error) && parent != parent.parent_path()) {
    parent = parent.parent_path();
  }
  if (!fs::is_directory(parent, error)) {
    io::fail_file(what, "{} is no directory", parent.string());
  }
  if (::access(parent.c_str(), W_OK) != 0) {
    io::fail_file(what, "no permission to write into {}", parent.string());
  }
}

void write_json(const std::string& path, const nlohmann::json& value) {
  if (path.empty()) return;
  // Text of a model may end in the middle of a character.
  const std::string text =
      value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (path == "-") {
    put(stdout, text);
  } else {
    io::write_file_atomically(path, text);
  }
}

}  // namespace twell::cli
